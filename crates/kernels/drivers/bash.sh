# The driver of bash. A loop outside of functions evaluates the code, so that `declare` makes variables that survive.
#
# Bash can only abandon code by exiting. So the trap of EXIT replaces the process with a new bash, which gets all
# variables, functions and options, ends the run and reads the next request. That is how `exit`, an interrupt, and a
# failing command after `set -e` end a run but not the kernel. Only the table of jobs is lost.
#
# All state is in the array `__tidebox`:
#   marker, loop, bash          as the kernel was started
#   output, input, errors       descriptors
#   count, run, code            number of runs; request in progress, and its code
#   phase                       `code` while code runs, `exit` after an interrupt
#   interrupted                 set by an interrupt
#   undo                        commands that undo the variables of the run
#   options                     options of the code, which are off while the driver works
#   prologue                    commands that set these options, and a trap of EXIT that is due
#   at_exit                     the code's own trap of EXIT
#   exited                      status of an exit, in the new process

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  builtin exit 126
fi

# Sets `text` of the caller to a JSON string.
__tidebox_json() {
  builtin local LC_ALL=C.UTF-8 rest="$1" plain at code escaped
  if ((${#rest} > 100000)); then
    rest="${rest:0:50000}[... $((${#rest} - 100000)) characters were left out ...]${rest: -50000}"
  fi
  text=\"
  while [[ -n $rest ]]; do
    plain=${rest%%[$'\x01'-$'\x1f'\"\\$'\x7f'-$'\U10ffff']*}
    text+=$plain
    rest=${rest:${#plain}}
    [[ -n $rest ]] || builtin break
    builtin printf -v code %d "'$rest"
    # A byte that is not UTF-8 has no code point.
    if [[ ${rest:0:1} != [$'\x01'-$'\U10ffff'] ]] || ((code < 1 || code > 0x10ffff)); then
      code=0xfffd
    fi
    if ((code > 0xffff)); then
      builtin printf -v escaped '\\u%04x\\u%04x' $((0xd800 + (code - 0x10000 >> 10))) $((0xdc00 + (code & 0x3ff)))
    else
      builtin printf -v escaped '\\u%04x' "$((code))"
    fi
    text+=$escaped
    rest=${rest:1}
  done 2>/dev/null
  text+=\"
}

# Writes a message of ASCII to a descriptor. The segments are short, because bash buffers no more than 1008 bytes.
__tidebox_send() {
  builtin local LC_ALL=C rest="$2" piece last segment
  while [[ -n $rest ]]; do
    piece=${rest:0:900}
    rest=${rest:900}
    last=+
    [[ -n $rest ]] || last=.
    builtin printf -v segment '\x1e%s%04x%s%s' "${__tidebox[marker]}" "${#piece}" "$last" "$piece"
    builtin printf %s "$segment" >&"$1"
  done 2>/dev/null
}

# Writes a message to stdout and to stderr.
__tidebox_send_both() {
  __tidebox_send "${__tidebox[output]}" "$1"
  __tidebox_send "${__tidebox[errors]}" "$1"
}

# Writes the error of the run: its name, value and traceback.
__tidebox_fail() {
  builtin local name="$1" value text
  __tidebox_json "$2"
  value=$text
  __tidebox_json "$3"
  __tidebox_send "${__tidebox[output]}" \
    "{\"type\":\"error\",\"run\":${__tidebox[run]},\"name\":\"$name\",\"value\":$value,\"traceback\":$text}"
}

# Prints what is wrong with the syntax of the code.
__tidebox_syntax() {
  builtin local extglob=+O
  builtin shopt -q extglob && extglob=-O
  BASH_ENV= "${__tidebox[bash]}" --noprofile --norc "$extglob" extglob -n \
    < <(builtin printf '%s\n' "${__tidebox[code]}") 2>&1
}

# Switches off the options of the code that change what the driver does.
__tidebox_plain() {
  [[ -z ${__tidebox[phase]} ]] || __tidebox[options]=$SHELLOPTS
  builtin set +aeuvxkCET +o posix
}

# Ends the run, whose last command ended with a status.
__tidebox_end() {
  __tidebox_plain
  __tidebox[phase]=
  builtin eval "${__tidebox[undo]}" 2>/dev/null
  builtin local status="${__tidebox[exited]:-$1}" message
  if [[ -n ${__tidebox[interrupted]} ]]; then
    __tidebox_fail KeyboardInterrupt '' 'KeyboardInterrupt: the code was interrupted'
  elif ((status == 2)) && [[ -z ${__tidebox[exited]} ]] && ! message=$(__tidebox_syntax); then
    message="line ${message#*: line }"
    __tidebox_fail SyntaxError "${message%%$'\n'*}" "SyntaxError: $message"
  elif ((status)); then
    message="the last command ended with status $status"
    __tidebox_fail ExitStatus "$message" "ExitStatus: $message"
  fi
  __tidebox_send_both "{\"type\":\"end\",\"run\":${__tidebox[run]}}"
  __tidebox[run]= __tidebox[code]= __tidebox[undo]= __tidebox[interrupted]= __tidebox[exited]=
}

# Sets `__tidebox_part` of the caller to the next bytes of the requests.
__tidebox_read() {
  __tidebox_part=
  (($1 == 0)) || LC_ALL=C builtin read -r -N "$1" -u "${__tidebox[input]}" __tidebox_part
}

# Sets a variable of the run, and notes how to undo that.
__tidebox_set() {
  builtin local __tidebox_name="${1%%=*}" __tidebox_old
  if [[ $__tidebox_name == [!A-Za-z_]* || $__tidebox_name == *[!A-Za-z0-9_]* ]]; then
    builtin printf 'bash cannot set the variable `%s`: use letters, digits and `_` in its name\n' "$__tidebox_name" >&2
    builtin return 0
  fi
  __tidebox_old=${!__tidebox_name@A}
  [[ $__tidebox_old == declare\ * ]] && __tidebox_old="declare -g${__tidebox_old#declare -}"
  __tidebox[undo]+="builtin unset -v $__tidebox_name; ${__tidebox_old:+builtin eval ${__tidebox_old@Q};}"
  builtin export "$1"
}

# Answers requests until one has code to run.
__tidebox_next() {
  builtin local __tidebox_line __tidebox_kind __tidebox_part
  if [[ ${__tidebox[phase]} == code ]]; then
    # The code has left the loop of the driver, by `break` or `continue`.
    __tidebox_end 0
  elif [[ -n ${__tidebox[exited]} && -n ${__tidebox[at_exit]} ]]; then
    __tidebox_prologue
    __tidebox[prologue]+="__tidebox_status ${__tidebox[exited]} && builtin :; "
    __tidebox[code]=${__tidebox[at_exit]} __tidebox[at_exit]= __tidebox[phase]=code
    builtin return 0
  elif [[ -n ${__tidebox[exited]} ]]; then
    __tidebox_end 0
  fi
  while builtin read -r -u "${__tidebox[input]}" __tidebox_line; do
    __tidebox_kind=${__tidebox_line%% *}
    __tidebox_line=${__tidebox_line#* }
    __tidebox[run]=${__tidebox_line%% *}
    __tidebox_line=${__tidebox_line#* }
    if [[ $__tidebox_kind == complete ]]; then
      __tidebox_read "${__tidebox_line#* }"
      __tidebox_send_both "{\"type\":\"begin\",\"run\":${__tidebox[run]},\"count\":$((__tidebox[count]))}"
      __tidebox_complete "$__tidebox_part" "${__tidebox_line% *}" 2>/dev/null
      __tidebox_send_both "{\"type\":\"end\",\"run\":${__tidebox[run]}}"
      __tidebox[run]= __tidebox[interrupted]=
      builtin continue
    fi
    __tidebox_read "${__tidebox_line%% *}"
    __tidebox[code]=$__tidebox_part
    __tidebox[count]=$((__tidebox[count] + 1))
    __tidebox_send_both "{\"type\":\"begin\",\"run\":${__tidebox[run]},\"count\":${__tidebox[count]}}"
    while [[ $__tidebox_line == *' '* ]]; do
      __tidebox_line=${__tidebox_line#* }
      __tidebox_read "${__tidebox_line%% *}"
      __tidebox_set "$__tidebox_part"
    done
    __tidebox_prologue
    __tidebox[phase]=code
    [[ -z ${__tidebox[interrupted]} ]] || builtin exit 130
    builtin return 0
  done
  # Nobody sends requests any more.
  builtin trap - EXIT
  builtin eval "${__tidebox[at_exit]}"
  builtin exit 0
}

# Sets the commands that switch the options of the code on again.
__tidebox_prologue() {
  builtin local option
  __tidebox[prologue]=
  for option in allexport errtrace functrace keyword noclobber posix errexit nounset verbose xtrace; do
    [[ :${__tidebox[options]}: != *:$option:* ]] || __tidebox[prologue]+="builtin set -o $option; "
  done
}

# Interrupts the code.
__tidebox_interrupt() {
  [[ -n ${__tidebox[run]} ]] || builtin return 0
  __tidebox[interrupted]=1
  if [[ ${__tidebox[phase]} == code ]]; then
    # A second interrupt must not exit the trap of EXIT.
    __tidebox[phase]=exit
    builtin exit 130
  fi
}

# Keeps the driver's traps where the code sets its own. The code's trap of EXIT runs when the code exits.
trap() {
  if ((BASHPID != $$)); then
    builtin trap "$@"
    builtin return 0
  fi
  builtin trap -- "${__tidebox[at_exit]:--}" EXIT
  builtin trap "$@"
  builtin local status=$? set
  set=$(builtin trap -p EXIT)
  set=${set#trap -- }
  builtin eval "__tidebox[at_exit]=${set% EXIT}"
  builtin trap '__tidebox_exit "$?" "$@"' EXIT
  [[ -n $(builtin trap -p INT) ]] || builtin trap __tidebox_interrupt INT
  builtin return "$status"
}

# Returns a status.
__tidebox_status() {
  builtin return "$1"
}

# Prints the commands that make the state of the code again. It runs in a subshell, and has no local variables, because
# these hide variables of the code.
__tidebox_state() {
  builtin set -- "$((${#FUNCNAME[@]} - 2))"
  builtin shopt -p
  builtin set +o
  builtin declare -p
  # In a function, each `unset` uncovers the variables that local ones hide.
  while (($1 > 0)); do
    builtin mapfile -t __tidebox_names < <(builtin compgen -v)
    builtin unset -v "${__tidebox_names[@]/#__tidebox*/_}"
    builtin mapfile -t __tidebox_names < <(builtin compgen -v)
    __tidebox_names=("${__tidebox_names[@]/#__tidebox*/_}")
    builtin printf 'builtin unset -v %s\n' "${__tidebox_names[@]}"
    builtin declare -p "${__tidebox_names[@]}"
    builtin set -- "$(($1 < 50 ? $1 - 1 : 49))"
  done
  # Before the function that replaces `trap`.
  builtin trap -p
  builtin declare -f
  builtin declare -F
  builtin alias -p
} 2>/dev/null

# Replaces the process with a new bash, because the code has exited with a status; the other arguments are those of the
# shell.
__tidebox_exit() {
  __tidebox_plain
  __tidebox[phase]= __tidebox[code]= __tidebox[exited]=$1
  __tidebox[state]=
  __tidebox[state]=$(__tidebox_state)
  builtin shift
  if [[ ! -e /proc/self/fd/${__tidebox[output]} ]]; then
    # The loop was left already.
    builtin set -- 3 4 5 "$@"
  else
    builtin set -- "${__tidebox[output]}" "${__tidebox[input]}" "${__tidebox[errors]}" "$@"
  fi
  # One line, as the start of the driver, and parsed before there are aliases.
  __tidebox[restore]='builtin trap : INT; __tidebox_fd=${1##*/}; builtin shift; LC_ALL=C builtin read -r -N 2147483647 '
  __tidebox[restore]+='-u "$__tidebox_fd" __tidebox_state; exec {__tidebox_fd}<&-; builtin eval "$__tidebox_state" '
  __tidebox[restore]+=">/dev/null 2>&1; builtin unset -v __tidebox_fd __tidebox_state; ${__tidebox[loop]}"
  # Copies by way of 0, because copies of what programs do not inherit would not be inherited either.
  BASH_ENV= builtin exec "${__tidebox[bash]}" --noprofile --norc -c "${__tidebox[restore]}" bash \
    <(builtin printf %s "${__tidebox[state]}") "${@:4}" 7<&0 0>&"$1" 3>&0 0<&"$2" 4<&0 0>&"$3" 5>&0 0<&7 7<&-
}

# Writes the completions of code before its character `$2`.
__tidebox_complete() {
  builtin local LC_ALL=C.UTF-8 line word before start match text list=
  builtin local -a words matches
  builtin local -A seen
  line=${1:0:$2}
  line=${line##*$'\n'}
  word=${line##*[[:space:]\;\|\&\(\)\<\>\"\'\`=]}
  before=${line:0:${#line}-${#word}}
  if [[ $word == *'$'* ]]; then
    word=${word##*'$'}
    word=${word#'{'}
    words=(-v)
  elif [[ $word != */* && $before =~ (^|[\;\|\&\(\`])[[:space:]]*$ ]]; then
    words=(-c)
  else
    words=(-f)
  fi
  start=$(($2 - ${#word}))
  builtin mapfile -t matches < <(builtin compgen "${words[@]}" -- "$word")
  for match in "${matches[@]:0:5000}"; do
    [[ $match != __tidebox* && -z ${seen[$match]} ]] || builtin continue
    seen[$match]=1
    [[ $words != -f || ! -d $match ]] || match+=/
    __tidebox_json "$match"
    list+=,$text
  done
  __tidebox_send "${__tidebox[output]}" \
    "{\"type\":\"completions\",\"run\":${__tidebox[run]},\"start\":$start,\"matches\":[${list#,}]}"
}

__tidebox[loop]='builtin trap __tidebox_interrupt INT; builtin trap "__tidebox_exit \"\$?\" \"\$@\"" EXIT; '
__tidebox[loop]+='{ until builtin false; do until builtin false; do __tidebox_next; '
__tidebox[loop]+='builtin eval "${__tidebox[prologue]}${__tidebox[code]}"; { __tidebox_end "$?"; } 2>/dev/null; '
__tidebox[loop]+='done; done; __tidebox_exit 0; } 3>&- 4<&- 5>&-'
__tidebox[bash]=$BASH
# Opened again, so that no program of the code can make them non-blocking.
[[ ! -p /proc/self/fd/3 || ! -w /proc/self/fd/3 ]] || exec 3>>/proc/self/fd/3
[[ ! -p /proc/self/fd/5 || ! -w /proc/self/fd/5 ]] || exec 5>>/proc/self/fd/5
# While the loop has 3, 4 and 5 closed, bash keeps copies at the first free numbers from 10, which programs do not
# inherit.
exec {__tidebox_output}>&3 {__tidebox_input}<&4 {__tidebox_errors}>&5
__tidebox[output]=$__tidebox_output __tidebox[input]=$__tidebox_input __tidebox[errors]=$__tidebox_errors
exec {__tidebox_output}>&- {__tidebox_input}<&- {__tidebox_errors}>&-
builtin unset -v __tidebox_output __tidebox_input __tidebox_errors
__tidebox_send 3 "{\"type\":\"ready\",\"version\":\"GNU bash $BASH_VERSION\"}"
