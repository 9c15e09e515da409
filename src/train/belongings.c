// Carries what belongs to the model of --load beside its weights into the checkpoints of the run: end tokens, the
// tokenizer, and files that say how the model is used.
#include "train/internal.h"
#include <string.h>

Status belongings_read(Belongings *b, const ModelSource *source) {
    b->tokens = model_source_info(source)->tokens;
    if (model_source_tokenizer(source, &b->tokenizer) != OK) b->tokenizer = NULL;
    Status status = companions_read(&b->companions, source, b->tokenizer);
    if (status != OK) belongings_free(b);
    return status;
}

void belongings_free(Belongings *b) {
    tokenizer_close(b->tokenizer);
    companions_free(&b->companions);
    *b = (Belongings){0};
}

static void choose_tokenizer(Belongings *b, const Options *o, Tokenizer **tokenizer) {
    bool same = b->tokenizer && *tokenizer && tokenizer_hash(b->tokenizer) == tokenizer_hash(*tokenizer);
    if (!b->tokenizer || (*tokenizer && (!same || batches_names_tokenizer(o)))) return;
    const Text *template = *tokenizer ? tokenizer_template(*tokenizer) : NULL;
    if (template && template->size) tokenizer_set_template(b->tokenizer, template->data, template->size);
    tokenizer_close(*tokenizer);
    *tokenizer = b->tokenizer;
    b->tokenizer = NULL;
}

Status belongings_choose(Belongings *b, const Options *o, Tokenizer **tokenizer) {
    int end;
    TokenList ends = {0};
    choose_tokenizer(b, o, tokenizer);
    TRY(batches_turn_end(o, &end));
    if (end == NO_TOKEN) return OK;
    int eod = *tokenizer ? tokenizer_eod(*tokenizer) : -1;
    for (int i = 0; i < b->tokens.num_ends; i++) token_list_add(&ends, &(int32_t){b->tokens.ends[i]}, 1);
    if (!ends.count && eod >= 0) token_list_add(&ends, &(int32_t){eod}, 1);
    Status status = companions_add_end(&b->companions, &ends, end);
    token_list_free(&ends);
    return status;
}
