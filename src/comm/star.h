// The connections of all ranks to rank 0, over which a job ends: in order, when every rank has left, or at once, when
// one has failed or is gone. They stay from the meeting, and carry nothing else.
#pragma once
#include "comm/post.h"

typedef struct Star Star;

// Takes the links of the meeting, which the post watches from then on.
Star *star_open(int rank, int size, Meeting *meeting, Post *post);
void star_close(Star *star); // takes NULL
// Tells the other ranks that the job ends with `status`, because of this rank. At most once; never blocks for long.
void star_abort(Star *star, int status);
// Waits until all ranks have left, then gives every rank the worst status and, as its fail_message, the first failing
// rank's. Where others are still at work LEAVE_GRACE_S after an error, it ends the job.
Status star_leave(Star *star, Status mine);
