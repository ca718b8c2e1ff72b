# Starts a server of OpenSSH as the page on programs says, and opens a terminal on it.
set -e
useradd --system --no-create-home --home-dir /run/sshd --shell /usr/sbin/nologin sshd
mkdir -p /run/sshd /tmp/keys "$HOME/.ssh"
ssh-keygen -q -t ed25519 -N '' -f /tmp/keys/host
ssh-keygen -q -t ed25519 -N '' -f /tmp/keys/user
cp /tmp/keys/user.pub "$HOME/.ssh/authorized_keys"
/usr/sbin/sshd -f /dev/null -E /tmp/keys/log -o Port=2222 -o ListenAddress=127.0.0.1 -o HostKey=/tmp/keys/host -o PidFile=/tmp/keys/pid
until [ -s /tmp/keys/pid ]; do sleep 0.02; done
ssh -tt -p 2222 -i /tmp/keys/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR \
  root@127.0.0.1 'tty; id -un' </dev/null || { cat /tmp/keys/log; exit 1; }
