// Latent attention: the sizes of its heads, and the options that it does not go with.
#include "config/lora.h"
#include "config/rules.h"
#include <string.h>

static Status check_beside(const Options *o) {
    bool runs = o->store->verb & FOR_RUN; // plans are of other programs, too
    const struct {
        bool given;
        const char *option, *instead;
    } refused[] = {
        {strcmp(o->position_embedding_type, "rope") != 0, "other positions than rope",
         "add --position-embedding-type rope"},
        {o->group_query_attention, "--group-query-attention", "leave it out: all heads share the latents"},
        {o->add_qkv_bias, "--add-qkv-bias", "leave it out: only the output of the attention can have a bias"},
        {option_given(o, OPT_rotary_percent), "--rotary-percent", "use --qk-pos-emb-head-dim"},
        {runs && o->fp8_format, "--fp8-format", "leave it out: these products are not available in 8 bits"},
        {runs && o->fp4_format, "--fp4-format", "leave it out: these products are not available in 4 bits"},
        {strcmp(o->qk_norm, "head") != 0, "latents that are not normalised", "add --qk-layernorm"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (refused[i].given)
            return fail(ERR_CONFIG, "--multi-latent-attention does not go with %s: %s", refused[i].option,
                        refused[i].instead);
    return OK;
}

Status resolve_latents(Options *o) {
    if (!o->multi_latent_attention) return OK;
    int size = o->qk_head_dim + o->qk_pos_emb_head_dim;
    TRY(check_beside(o));
    if (option_given(o, OPT_kv_channels) && o->kv_channels != size)
        return fail(
            ERR_CONFIG,
            "--kv-channels %d is not --qk-head-dim %d and --qk-pos-emb-head-dim %d together: leave it "
            "out",
            o->kv_channels, o->qk_head_dim, o->qk_pos_emb_head_dim);
    if (o->qk_pos_emb_head_dim % 2)
        return fail(ERR_CONFIG, "--qk-pos-emb-head-dim %d: rope rotates pairs, so use an even number",
                    o->qk_pos_emb_head_dim);
    if (o->kv_channels != size) derived(o, OPT_kv_channels);
    o->kv_channels = size;
    return OK;
}
