#!/bin/sh
# Runs a command that compiles kernels. What the assembler says of each kernel's registers and memory goes to FILE, for
# tools/lint_kernels; everything else to standard error.
#
#   with_usage.sh FILE COMMAND...
file=$1
shift
"$@" 2>"$file.all"
status=$?
usage='^ptxas info|^ +[0-9]+ bytes stack frame'
grep -E "$usage" "$file.all" >"$file"
grep -vE "$usage" "$file.all" >&2
rm -f "$file.all"
exit $status
