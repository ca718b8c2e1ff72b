builtin declare -A __tidebox; builtin read -r -u 4 "__tidebox[marker]" __tidebox_driver; LC_ALL=C builtin read -r -N "$__tidebox_driver" -u 4 __tidebox_driver; builtin eval "$__tidebox_driver"; builtin unset -v __tidebox_driver; builtin eval "${__tidebox[loop]}"
# It is one line, because bash counts the lines of evaluated code from the line that evaluates it.
