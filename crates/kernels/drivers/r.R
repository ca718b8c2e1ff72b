# The driver of R. Its environment has `messages`, `errors` and `input`, the connections for descriptors 3, 5 and 4, and
# `marker`. Programs inherit none of these connections. `messages` and `errors` are NULL where the descriptors cannot be
# opened again, because another user made the pipes. `input` then reads from a program.
#
# Interrupts are suspended except while code runs.

if (getRversion() < "4.0.0") {
  quit("no", 126, FALSE)
}

MIB <- 1024L * 1024L
# Largest representation, and longest JSON of one, in bytes.
BYTES_MAX <- 10L * MIB
JSON_BYTES_MAX <- 15L * MIB
SEGMENT_BYTES_MAX <- 4096L
# Longest text of an error, in characters, and most calls in it.
ERROR_CHARS_MAX <- 100000L
CALLS_MAX <- 60L
# Longest code of which functions keep their source, in bytes.
SOURCE_BYTES_MAX <- 100000L
MATCHES_MAX <- 5000L

process <- Sys.getpid()
# Number of runs; number of the request, as text, because R has no integers of 64 bits.
count <- 0L
request <- "0"
# Depth of the calls of the driver below the code.
depth <- 0L
# True if the code has raised a warning that may not be printed yet.
has_warned <- FALSE
# Number of plot devices; patterns of the names of their files in this run.
device_count <- 0L
device_files <- character()
has_said_no_plots <- FALSE

# Messages

prefix <- c(as.raw(0x1e), charToRaw(marker))

# Writes a message to a descriptor: 3 or 5.
emit <- function(message, descriptor = 3L) {
  if (Sys.getpid() != process) {
    end_child()
  }
  connection <- if (descriptor == 3L) messages else errors
  room <- SEGMENT_BYTES_MAX - length(prefix) - 5L
  for (start in seq.int(1L, length(message), by = room)) {
    end <- min(start + room - 1L, length(message))
    head <- sprintf("%04x%s", end - start + 1L, if (end == length(message)) "." else "+")
    segment <- c(prefix, charToRaw(head), message[start:end])
    if (is.null(connection)) {
      emit_copied(segment, descriptor)
    } else {
      # One call writes it, because it fits into the buffer of the stream.
      writeBin(segment, connection)
      flush(connection)
    }
  }
}

# Writes a segment where the descriptor cannot be opened again.
emit_copied <- function(segment, descriptor) {
  if (descriptor == 3L && sink.number() == 0L && file.exists("/dev/fd/1")) {
    cat(rawToChar(segment))
  } else if (descriptor == 5L && sink.number("message") == 2L && file.exists("/dev/fd/2")) {
    cat(rawToChar(segment), file = stderr())
  } else {
    path <- tempfile("segment", tempdir(TRUE))
    on.exit(unlink(path))
    writeBin(segment, path)
    if (.Internal(system(sprintf("exec cat '%s' >&%d", path, descriptor), FALSE, 0L)) != 0L) {
      quit("no", 1, FALSE)
    }
  }
}

# Ends a child that the code has forked.
end_child <- function() {
  tools::pskill(Sys.getpid(), tools::SIGKILL)
}

# Returns a string as JSON, in bytes.
json <- function(text) {
  text <- paste(as.character(text), collapse = "\n")
  bytes <- charToRaw(if (Encoding(text) == "bytes") text else enc2utf8(text))
  text <- rawToChar(bytes)
  Encoding(text) <- "UTF-8"
  if (!validUTF8(text)) {
    text <- iconv(text, "UTF-8", "UTF-8", sub = "\ufffd")
    if (is.na(text) || !validUTF8(text)) {
      bytes[bytes > as.raw(0x7f)] <- charToRaw("?")
      text <- rawToChar(bytes)
    }
  }
  special <- unique(bytes[bytes < as.raw(0x20) | bytes == as.raw(0x22) | bytes == as.raw(0x5c)])
  # The backslash first, because the others are replaced with one.
  for (code in sort(as.integer(special), decreasing = TRUE)) {
    plain <- rawToChar(as.raw(code))
    escaped <- switch(plain, "\n" = "\\n", "\"" = , "\\" = paste0("\\", plain), sprintf("\\u%04x", code))
    text <- gsub(plain, escaped, text, fixed = TRUE, useBytes = TRUE)
  }
  c(charToRaw("\""), charToRaw(text), charToRaw("\""))
}

# Returns a message; the values of its fields are bytes of JSON.
message_bytes <- function(type, ...) {
  fields <- list(...)
  head <- sprintf("{\"type\":\"%s\",\"run\":%s", type, request)
  parts <- lapply(names(fields), function(name) c(charToRaw(sprintf(",\"%s\":", name)), fields[[name]]))
  c(charToRaw(head), unlist(parts), charToRaw("}"))
}

emit_both <- function(message) {
  message <- charToRaw(message)
  # Of what code in C has printed.
  flush(stdout())
  emit(message, 3L)
  emit(message, 5L)
}

# Shows representations by MIME type.
send <- function(data, is_main) {
  parts <- raw()
  notes <- character()
  for (mime in setdiff(names(data), "text/plain")) {
    size <- nchar(data[[mime]], "bytes")
    if (size <= BYTES_MAX) {
      parts <- c(parts, charToRaw(sprintf("\"%s\":", mime)), json(data[[mime]]), charToRaw(","))
    } else {
      notes <- c(notes, left_out(mime, size))
    }
  }
  plain <- data[["text/plain"]]
  if (!is.null(plain)) {
    size <- nchar(plain, "bytes")
    encoded <- if (size <= BYTES_MAX) json(plain)
    if (is.null(encoded) || length(parts) + length(encoded) > JSON_BYTES_MAX) {
      notes <- c(left_out("text/plain", max(size, length(encoded))), notes)
      plain <- NULL
    }
  }
  encoded <- if (length(notes)) json(c(plain, notes)) else json(if (is.null(plain)) "" else plain)
  data <- c(charToRaw("{"), parts, charToRaw("\"text/plain\":"), encoded, charToRaw("}"))
  emit(message_bytes("result", main = charToRaw(if (is_main) "true" else "false"), data = data))
}

left_out <- function(mime, size) {
  sprintf("%s was left out: %.1f MB are more than 10 MiB", mime, size / 1e6)
}

alphabet <- charToRaw("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")

base64 <- function(bytes) {
  padding <- -length(bytes) %% 3L
  triples <- matrix(as.integer(c(bytes, raw(padding))), 3L)
  first <- triples[1L, ]
  second <- triples[2L, ]
  third <- triples[3L, ]
  digits <- rbind(
    first %/% 4L,
    first %% 4L * 16L + second %/% 16L,
    second %% 16L * 4L + third %/% 64L,
    third %% 64L
  )
  encoded <- alphabet[digits + 1L]
  if (padding > 0L) {
    encoded[length(encoded) - seq_len(padding) + 1L] <- charToRaw("=")
  }
  rawToChar(encoded)
}

shortened <- function(text) {
  text <- paste(as.character(text), collapse = "\n")
  if (!validUTF8(text)) {
    text <- iconv(text, "UTF-8", "UTF-8", sub = "byte")
  }
  length <- nchar(text)
  if (length <= ERROR_CHARS_MAX) {
    return(text)
  }
  half <- ERROR_CHARS_MAX %/% 2L
  sprintf(
    "%s\n... %d characters were left out ...\n%s",
    substr(text, 1L, half), length - 2L * half, substr(text, length - half + 1L, length)
  )
}

# Code

# Discards an interrupt that came while no code ran.
discard_interrupt <- function() {
  tryCatch(allowInterrupts(Sys.sleep(0)), interrupt = function(condition) NULL)
}

run_code <- function(code, variables) {
  count <<- count + 1L
  discard_interrupt()
  emit_both(sprintf("{\"type\":\"begin\",\"run\":%s,\"count\":%d}", request, count))
  old <- set_variables(variables)
  has_warned <<- FALSE
  report <- tryCatch(evaluate(code), error = function(error) list("Error", conditionMessage(error), "", NULL))
  if (Sys.getpid() != process) {
    end_child()
  }
  print_warnings()
  tryCatch(send_plots(), error = function(error) {
    cat("a plot cannot be shown: ", conditionMessage(error), "\n", file = stderr(), sep = "")
  })
  if (!is.null(report)) {
    emit(message_bytes(
      "error",
      name = json(report[[1L]]), value = json(shortened(report[[2L]])), traceback = json(shortened(report[[3L]]))
    ))
  }
  restore_variables(old)
  emit_both(sprintf("{\"type\":\"end\",\"run\":%s}", request))
}

# Runs code; returns the name, value and traceback of its error, NULL if it has none.
evaluate <- function(code) {
  keep_source <- nchar(code, "bytes") <= SOURCE_BYTES_MAX
  expressions <- tryCatch(
    parse(text = code, keep.source = keep_source, encoding = "UTF-8"),
    error = function(error) error
  )
  if (!is.expression(expressions)) {
    value <- sub("^<text>:([0-9]+):([0-9]+): ", "line \\1, column \\2: ", conditionMessage(expressions))
    return(list("ParseError", value, paste0("ParseError: ", value)))
  }
  calls <- NULL
  error <- tryCatch(
    withRestarts(
      withCallingHandlers(
        {
          allowInterrupts(run_expressions(expressions))
          NULL
        },
        error = function(error) calls <<- sys.calls(),
        warning = function(warning) has_warned <<- TRUE
      ),
      abort = function() NULL
    ),
    error = function(error) error,
    interrupt = function(condition) condition
  )
  if (inherits(error, "interrupt")) {
    list("Interrupt", "the code was interrupted", "Interrupt: the code was interrupted")
  } else if (!is.null(error)) {
    describe(error, calls)
  }
}

run_expressions <- function(expressions) {
  depth <<- sys.nframe()
  last <- length(expressions)
  for (at in seq_along(expressions)) {
    value <- withVisible(eval(expressions[[at]], globalenv()))
    if (value$visible && at < last) {
      print(value$value)
    } else if (value$visible) {
      show_value(value$value)
    }
    if (has_warned) {
      print_warnings()
    }
  }
  # An interrupt that no code has noticed yet.
  Sys.sleep(0)
}

# Shows the value of the last expression.
show_value <- function(value) {
  text <- printed(value)
  if (nzchar(text)) {
    send(list("text/plain" = text), TRUE)
  }
}

# Returns what printing a value prints.
printed <- function(value) {
  buffer <- rawConnection(raw(), "wb")
  before <- sink.number()
  unsink <- function() {
    while (sink.number() > before) {
      sink()
    }
    bytes <- rawConnectionValue(buffer)
    close(buffer)
    text <- rawToChar(bytes[bytes != as.raw(0L)])
    Encoding(text) <- "UTF-8"
    text
  }
  on.exit(suspendInterrupts({
    text <- unsink()
    cat(text)
  }))
  sink(buffer)
  print(value)
  on.exit()
  sub("\n$", "", unsink(), useBytes = TRUE)
}

# Prints the warnings as R does at the end of each expression.
print_warnings <- function() {
  if (!has_warned) {
    return()
  }
  has_warned <<- FALSE
  if (sink.number("message") != 2L) {
    .Internal(printDeferredWarnings())
    return()
  }
  lines <- NULL
  buffer <- textConnection("lines", "w", local = TRUE)
  on.exit(close(buffer))
  sink(buffer, type = "message")
  tryCatch(.Internal(printDeferredWarnings()), finally = sink(type = "message"))
  # What the code does at its top level has no call.
  cleaned <- sub("In eval\\(expressions\\[\\[at\\]\\], globalenv\\(\\)\\) :( |$)", "", sub("^In addition: ", "", lines))
  text <- paste0(cleaned, "\n", collapse = "")
  if (length(lines)) {
    cat(text, file = stderr())
  }
}

# Returns the name, value and traceback of an error.
describe <- function(error, calls) {
  name <- class(error)[1L]
  if (name == "simpleError") {
    name <- "Error"
  }
  value <- tryCatch(
    paste(as.character(conditionMessage(error)), collapse = "\n"),
    error = function(other) "its message cannot be shown"
  )
  call <- tryCatch(conditionCall(error), error = function(other) NULL)
  if (is_driver_call(call)) {
    call <- NULL
  }
  text <- if (is.null(call)) paste0(name, ": ", value) else paste0(name, " in ", call_text(call), ": ", value)
  # The code begins below `withVisible` and the two of `eval`, or below `print`.
  calls <- calls[seq_along(calls) > depth]
  while (length(calls) && is_driver_call(calls[[1L]])) {
    calls <- calls[-1L]
  }
  # The last is that of the handler.
  calls <- calls[-length(calls)]
  # R calls the handlers, for warnings that are errors too.
  is_handler <- vapply(calls, function(call) any(vapply(handler_calls, identical, NA, call[[1L]])), NA)
  if (any(is_handler)) {
    calls <- calls[seq_len(which(is_handler)[1L] - 1L)]
  }
  lines <- character()
  if (length(calls)) {
    shown <- seq_along(calls)
    if (length(calls) > CALLS_MAX) {
      shown <- c(seq_len(CALLS_MAX / 2L), length(calls) - rev(seq_len(CALLS_MAX / 2L)) + 1L)
    }
    lines <- sprintf("%d. %s", shown, vapply(calls[shown], call_text, ""))
    if (length(calls) > CALLS_MAX) {
      lines <- append(lines, sprintf("... %d calls were left out ...", length(calls) - CALLS_MAX), CALLS_MAX / 2L)
    }
    lines <- c("Traceback:", lines)
  }
  list(name, value, paste(c(text, lines), collapse = "\n"))
}

driver_calls <- list(
  quote(withVisible(eval(expressions[[at]], globalenv()))),
  quote(eval(expressions[[at]], globalenv())),
  quote(show_value(value$value)),
  quote(printed(value)),
  quote(print(value$value)),
  quote(print(value))
)

handler_calls <- list(quote(.handleSimpleError), quote(.signalSimpleWarning))

is_driver_call <- function(call) {
  any(vapply(driver_calls, identical, NA, call, ignore.srcref = TRUE))
}

call_text <- function(call) {
  tryCatch(
    {
      text <- deparse(call, width.cutoff = 100L, nlines = 2L)
      if (length(text) > 1L) paste(text[1L], "...") else text
    },
    error = function(error) "..."
  )
}

# Variables of the run

# Sets variables, given as `NAME=VALUE`; returns what they were, NA where they were not set.
set_variables <- function(variables) {
  old <- character()
  for (variable in variables) {
    name <- sub("=.*", "", variable)
    value <- substring(variable, nchar(name) + 2L)
    before <- Sys.getenv(name, NA, names = FALSE)
    if (isTRUE(tryCatch(set_variable(name, value), error = function(error) FALSE))) {
      old[name] <- before
    } else {
      cat("R cannot set the variable `", name, "`: change its name\n", file = stderr(), sep = "")
    }
  }
  old
}

set_variable <- function(name, value) {
  value <- list(value)
  names(value) <- name
  do.call(Sys.setenv, value)
}

restore_variables <- function(old) {
  for (name in names(old)) {
    if (is.na(old[[name]])) Sys.unsetenv(name) else set_variable(name, old[[name]])
  }
}

# Plots

# Opens a device for the plots of a run; R calls it where code plots without one.
open_device <- function(...) {
  device_count <<- device_count + 1L
  path <- file.path(tempdir(TRUE), sprintf("kernel-plot-%d-%%05d.png", device_count))
  is_open <- capabilities("cairo") && tryCatch(
    {
      width <- getOption("repr.plot.width", 7)
      height <- getOption("repr.plot.height", 7)
      grDevices::png(path, width, height, "in", res = getOption("repr.plot.res", 120), type = "cairo")
      TRUE
    },
    error = function(error) FALSE,
    warning = function(warning) FALSE
  )
  if (is_open) {
    device_files <<- c(device_files, path)
  } else {
    if (!has_said_no_plots) {
      has_said_no_plots <<- TRUE
      cat("plots are not shown, because this R cannot make PNG: it needs cairo\n", file = stderr())
    }
    grDevices::pdf(NULL)
  }
}

send_plots <- function() {
  if (!length(device_files)) {
    return()
  }
  paths <- device_files
  device_files <<- character()
  for (device in grDevices::dev.list()) {
    if (isTRUE(attr(.Devices[[device]], "filepath") %in% paths)) {
      grDevices::dev.off(device)
    }
  }
  for (path in paths) {
    pattern <- sub("%05d", "[0-9]*", basename(path), fixed = TRUE)
    for (file in Sys.glob(file.path(dirname(path), pattern))) {
      size <- file.size(file)
      plot <- if (size * 4 / 3 <= BYTES_MAX) base64(readBin(file, "raw", size))
      unlink(file)
      data <- if (is.null(plot)) left_out("image/png", size * 4 / 3) else "plot"
      send(c(list("text/plain" = data), if (!is.null(plot)) list("image/png" = plot)), FALSE)
    }
  }
}

# Completion

complete <- function(code, cursor) {
  discard_interrupt()
  emit_both(sprintf("{\"type\":\"begin\",\"run\":%s,\"count\":%d}", request, count))
  line <- sub("^.*\n", "", substr(code, 1L, cursor))
  matches <- tryCatch(allowInterrupts(matches_of(line)), error = function(error) NULL, interrupt = function(c) NULL)
  token <- if (length(matches)) utils:::.CompletionEnv[["token"]] else ""
  encoded <- lapply(matches, json)
  encoded <- unlist(lapply(seq_along(encoded), function(at) c(if (at > 1L) charToRaw(","), encoded[[at]])))
  emit(message_bytes(
    "completions",
    start = charToRaw(sprintf("%d", cursor - nchar(token))),
    matches = c(charToRaw("["), encoded, charToRaw("]"))
  ))
  emit_both(sprintf("{\"type\":\"end\",\"run\":%s}", request))
}

matches_of <- function(line) {
  utils:::.assignLinebuffer(line)
  utils:::.assignEnd(nchar(line))
  utils:::.guessTokenFromLine()
  utils:::.completeToken()
  matches <- utils:::.retrieveCompletions()
  matches <- unique(as.character(matches))
  matches <- matches[nzchar(matches)]
  matches[seq_len(min(length(matches), MATCHES_MAX))]
}

# Requests

read_text <- function(length) {
  bytes <- readBin(input, "raw", as.integer(length))
  if (length(bytes) != as.integer(length)) {
    quit("no", 0, FALSE)
  }
  text <- rawToChar(bytes)
  Encoding(text) <- "UTF-8"
  text
}

read_words <- function() {
  line <- raw()
  repeat {
    byte <- tryCatch(readBin(input, "raw", 1L), error = function(error) raw())
    if (!length(byte)) {
      quit("no", 0, FALSE)
    }
    if (byte == as.raw(0x0a)) {
      return(strsplit(rawToChar(line), " ", fixed = TRUE)[[1L]])
    }
    line <- c(line, byte)
  }
}

serve <- function() {
  suspendInterrupts(repeat {
    words <- read_words()
    request <<- words[2L]
    if (words[1L] == "run") {
      code <- read_text(words[3L])
      run_code(code, vapply(words[-(1:3)], read_text, ""))
    } else {
      complete(read_text(words[4L]), as.integer(words[3L]))
    }
  })
}

# Changes to R

# Replaces a function of R's base package.
replace_base <- function(name, value) {
  unlockBinding(name, baseenv())
  assign(name, value, baseenv())
  lockBinding(name, baseenv())
}

# Runs a program, which an interrupt ends. R itself ignores interrupts while it waits for a program.
run_program <- function(command, intern, timeout) {
  if (intern || timeout > 0) {
    value <- withVisible(.Internal(system(command, intern, timeout)))
  } else {
    program <- pipe(paste0("exec </dev/null\n", command), "w")
    status <- close(program)
    status <- if (is.null(status)) 0L else as.integer(status)
    value <- list(value = if (status > 255L) status %/% 256L else status, visible = FALSE)
  }
  # Where an interrupt that came is raised.
  Sys.sleep(0)
  if (value$visible) value$value else invisible(value$value)
}

replace_programs <- function(name) {
  changed <- get(name, baseenv())
  last <- length(body(changed))
  if (identical(body(changed)[[last]], quote(.Internal(system(command, intern, timeout))))) {
    body(changed)[[last]] <- as.call(list(run_program, quote(command), quote(intern), quote(timeout)))
    replace_base(name, changed)
  }
}

# `closeAllConnections` and others must not know the connections of the driver.
own_connections <- c(input, messages, errors)
replace_base("getAllConnections", function() setdiff(.Internal(getAllConnections()), own_connections))
replace_programs("system")
replace_programs("system2")
options(device = open_device)
if (!l10n_info()[["UTF-8"]]) {
  for (locale in c("C.UTF-8", "C.utf8", "en_US.UTF-8")) {
    if (nzchar(suppressWarnings(Sys.setlocale("LC_CTYPE", locale)))) {
      break
    }
  }
}
if (!is.null(messages) && !is.null(errors)) {
  # So that programs do not inherit them.
  tryCatch(parallel:::closeFD(if (inherits(input, "pipe")) c(3L, 5L) else 3:5), error = function(error) NULL)
}
emit(charToRaw(sprintf("{\"type\":\"ready\",\"version\":\"R %s\"}", getRversion())))
