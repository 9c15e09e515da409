// The weights of a model as the library lists them.
#pragma once
#include "api/trireme.h"
#include "checkpoint/checkpoint.h"

typedef struct {
    WeightSpec *items;
    int count;
} WeightList;

Status weights_list(const ModelShape *shape, WeightList *list);
void weights_free(WeightList *list);
TriremeTensor weights_tensor(const WeightList *list, int i); // no name where there is no such number
const WeightSpec *weights_find(const WeightList *list, const char *name); // NULL: there is none
// Fails with ERR_NO_INPUT where there is no such weight, ERR_USAGE where it has no such part.
Status weights_check(const WeightList *list, const char *name, Rect part);
