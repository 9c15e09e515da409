// Three words for three kinds of trouble.
//
//   CHECK(cond, fmt, ...)    our bug. Always on. Prints where, which rank, which instruction; stops the whole
//                            job (exit 70).
//   fail(ERR_..., fmt, ...)  not our bug: files, options, memory at set-up. The first function that finds the error
//                            writes the message; callers pass the status up with TRY(f()).
//   abort of the job         a device or network fault inside a step: dumps the last events of the rank.
//
// A Status is the exit code the program ends with (after sysexits.h): there is nothing to
// translate at the top.
#pragma once
#include <stdarg.h>

typedef enum {
    OK = 0,
    ERR_OTHER = 1,
    ERR_USAGE = 64,       // command line: unknown verb or option
    ERR_DATA = 65,        // damaged or malformed input
    ERR_NO_INPUT = 66,    // a file that does not exist
    ERR_UNAVAILABLE = 69, // does not fit, or not available on this machine
    ERR_BUG = 70,
    ERR_OS = 71, // out of memory, threads, operating system
    ERR_CREATE = 73,
    ERR_IO = 74,
    ERR_NUMERIC = 76, // NaN or infinity where none may be
    ERR_PERMISSION = 77,
    ERR_CONFIG = 78, // options that contradict each other
    ERR_HANG = 79,
    ERR_REPLICAS = 80, // ranks that must hold the same bits do not: memory or a processor is faulty
    INTERRUPTED = 130, // SIGINT or SIGTERM
} Status;

// Records a one-line message for the calling rank (replacing an earlier one) and returns `status`.
Status fail(Status status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// The status that goes with errno after a failed call on a file: missing, permission, no space, else I/O.
Status errno_status(void);
// The status that goes with errno after a file could not be created or replaced. It is ERR_CREATE also where
// errno_status returns ERR_NO_INPUT: the folder does not exist, or a part of its path is a file.
Status create_status(void);
// The message of the last fail() on the calling rank; "" when there is none. Valid until the next fail().
const char *fail_message(void);

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        Status try_status_ = (call);                                                                         \
        if (try_status_ != OK) return try_status_;                                                           \
    } while (0)

#define CHECK(cond, ...)                                                                                     \
    do {                                                                                                     \
        if (!(cond)) check_failed(__FILE__, __LINE__, #cond, __VA_ARGS__);                                   \
    } while (0)

_Noreturn void check_failed(const char *file, int line, const char *cond, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
