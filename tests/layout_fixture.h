// Shared by the tests of schedules.
#pragma once
#include "harness.h"
#include "layout/schedule.h"

// Backwards take twice as long as forwards, and their halves equally long.
static inline void create(Schedule *s, const char *kind, int p, int v, int m, int receive_ahead) {
    EXPECT_OK(schedule_create(
        s, &(ScheduleSpec){.kind = kind,
                           .ranks = p,
                           .chunks = v,
                           .microbatches = m,
                           .receive_ahead = receive_ahead,
                           .costs = {.forward_us = 1, .backward_us = 2, .weight_fraction = 0.5}}));
}
