// A growing list of token ids, to which encoders append.
#pragma once
#include <stddef.h>
#include <stdint.h>

// Zero-initialise it and free it with token_list_free. Running out of memory is a CHECK.
typedef struct {
    int32_t *ids;
    size_t count, capacity;
} TokenList;

void token_list_add(TokenList *list, const int32_t *ids, size_t count);
void token_list_free(TokenList *list);
