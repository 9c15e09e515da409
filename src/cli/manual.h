// What `trireme help --man [VERB]` and `trireme help --completion SHELL` print; both come from the tables of verbs and
// options, and are installed with the program.
#pragma once
#include "cli/cli.h"

// Append the manual page of a verb, and that of the program, as troff with the macros of man.
void manual_add(const Command *command, Text *out);
void manual_add_overview(const Command *commands, int count, Text *out);
// Appends the completion of a shell, "bash", "zsh" or "fish".   ERR_USAGE for any other.
Status completion_add(const char *shell, const Command *commands, int count, Text *out);
