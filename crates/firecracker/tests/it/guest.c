/* The first program of a guest: uses all that its kernel and modules have to give, and says so. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <linux/vm_sockets.h>

static void end(const char *what) {
  printf("guest: %s: %s\n", what, what[0] ? strerror(errno) : "");
  fflush(stdout);
  reboot(RB_AUTOBOOT);
}

static void mounted(const char *source, const char *target, const char *type, unsigned long flags, const char *data) {
  mkdir(target, 0755);
  if (mount(source, target, type, flags, data)) end(target);
}

int main(void) {
  char line[256], path[512];
  int modules = 0, file;
  struct utsname kernel;
  FILE *order = fopen("/modules/order", "r");
  mounted("proc", "/proc", "proc", 0, "");
  mounted("sys", "/sys", "sysfs", 0, "");
  mounted("dev", "/dev", "devtmpfs", 0, "");
  if (!order) end("order");
  while (fgets(line, sizeof line, order)) {
    line[strcspn(line, "\n")] = 0;
    snprintf(path, sizeof path, "/modules/%s", line);
    if ((file = open(path, O_RDONLY)) < 0) end(path);
    if (syscall(SYS_finit_module, file, "", 0) && errno != ENODEV && errno != EEXIST) end(path);
    close(file);
    modules++;
  }
  uname(&kernel);
  printf("guest: kernel %s with %d modules\n", kernel.release, modules);

  mounted("/dev/vda", "/lower", "ext4", MS_RDONLY, "");
  mounted("tmpfs", "/upper", "tmpfs", 0, "");
  mkdir("/upper/files", 0755);
  mkdir("/upper/work", 0755);
  mounted("overlay", "/newroot", "overlay", 0, "lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work");
  FILE *greeting = fopen("/newroot/greeting", "r");
  if (!greeting || !fgets(line, sizeof line, greeting)) end("greeting");
  printf("guest: %s\n", line);
  if (!fopen("/newroot/new", "w")) end("new");

  if ((file = open("/dev/hwrng", O_RDONLY)) < 0 || read(file, line, 8) < 1) end("hwrng");

  struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_port = 5000, .svm_cid = VMADDR_CID_ANY};
  int listener = socket(AF_VSOCK, SOCK_STREAM, 0);
  if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1)) end("vsock");
  int stream = accept(listener, 0, 0);
  ssize_t length = read(stream, line, sizeof line);
  if (stream < 0 || length < 1 || write(stream, line, length) != length) end("stream");
  /* Until the other side has read it. */
  read(stream, line, 1);
  errno = 0;
  end("all is well");
}
