local({
  reopened <- function(path, mode) {
    tryCatch(suppressWarnings(file(path, mode, raw = TRUE)), error = function(error) NULL)
  }
  # Functions of base come first, then methods that the code has for its classes.
  driver <- new.env(parent = .BaseNamespaceEnv)
  driver$messages <- reopened("/dev/fd/3", "web")
  driver$errors <- reopened("/dev/fd/5", "web")
  driver$input <- reopened("/dev/fd/4", "reb")
  # Another user made the pipe.
  if (is.null(driver$input)) driver$input <- pipe("trap '' INT; exec cat <&4 3>&- 4<&- 5>&- 2>/dev/null", "rb")
  head <- raw()
  while (!length(head) || head[length(head)] != 10) {
    byte <- readBin(driver$input, "raw", 1)
    if (!length(byte)) quit("no", 1, FALSE)
    head <- c(head, byte)
  }
  head <- strsplit(rawToChar(head), "[ \n]")[[1]]
  driver$marker <- head[1]
  source <- rawToChar(readBin(driver$input, "raw", as.integer(head[2])))
  eval(parse(text = source, keep.source = FALSE), driver)
  driver$serve()
})
