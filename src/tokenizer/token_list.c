// A growing list of token ids.
#include "tokenizer/token_list.h"
#include "base/array.h"
#include <stdlib.h>

static void reserve(TokenList *list, size_t more) {
    if (list->capacity - list->count < more)
        array_grow(&list->ids, sizeof *list->ids, list->count + more, &list->capacity);
}

void token_list_add(TokenList *list, const int32_t *ids, size_t count) {
    reserve(list, count);
    for (size_t i = 0; i < count; i++) list->ids[list->count + i] = ids[i];
    list->count += count;
}

void token_list_free(TokenList *list) {
    free(list->ids);
    *list = (TokenList){0};
}
