// How much memory of simulated GPUs is free while the ranks of a process have them open.
#pragma once
#include "comm/comm.h"
#include "device/survey.h"
#include "harness.h"
#include <pthread.h>

// The survey chooses GPUs for its thread.
static void *survey_thread(void *found) {
    Text module = {0};
    EXPECT_OK(device_survey("cuda-sim", true, found, &module));
    text_free(&module);
    return NULL;
}

// By one rank: a survey takes a little memory of each GPU meanwhile.
static void survey_alone(Comm *world, DeviceSurvey *found) {
    pthread_t thread;
    comm_barrier(world);
    if (comm_rank(world) == 0) {
        pthread_create(&thread, NULL, survey_thread, found);
        pthread_join(thread, NULL);
    }
    comm_barrier(world);
}
