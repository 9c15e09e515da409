// A growing list of token ids: what an encoder appends to.
#pragma once
#include <stddef.h>
#include <stdint.h>

// Zero-initialise; token_list_free when done. Out of memory is a CHECK.
typedef struct {
    int32_t *ids;
    size_t count, capacity;
} TokenList;

void token_list_add(TokenList *list, const int32_t *ids, size_t count);
void token_list_free(TokenList *list);
