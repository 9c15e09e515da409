// Logs that Megatron-LM prints: the arguments of the run at the head, a line for each logged iteration.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>

enum { MAX_LOG_WORDS = 64 };

// Options of `trireme train` that stand for the run, each a word: "--num-layers=32".
typedef struct {
    char words[MAX_LOG_WORDS][96];
    int count;
} MegatronLog;

// Reads the arguments that say what an iteration computes. Data, learning rates and the like are left out, and words
// are added that train asks for.   ERR_DATA where the log has no arguments; as file_read.
Status megatron_log_read(MegatronLog *log, const char *path);
// Reads the time of an iteration and its batch from a line of the log.   Returns whether it has both.
bool megatron_log_iteration(const char *line, size_t size, double *ms, double *batch);
