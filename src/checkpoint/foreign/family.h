// The families of models that other programs' files hold, one row of data each (families.def): the names that their
// files use, what all their models are, and what their configurations say of one. The code that reads and writes files
// looks at the features of a row, never at which family it is.
#pragma once
#include "checkpoint/checkpoint.h"

typedef enum { FORMAT_HUGGING_FACE, FORMAT_GGUF, NUM_FORMATS } Format;
// The names of sizes: the columns of NAMES in nn/sizes.def.
typedef enum { DIALECT_GPT2, DIALECT_LLAMA, NUM_DIALECTS } Dialect;

// The names of tensors, bits: a row of the table in tensor_names.def says for which of them it is.
typedef enum {
    NAMES_GPT2 = 1,          // "transformer.h.0.attn.c_attn", linear weights transposed
    NAMES_LLAMA = 2,         // "model.layers.0.self_attn.q_proj"
    NAMES_AFTER = 4,         // as Llama's, with norms after attention and MLP
    NAMES_FUSED = 8,         // as Llama's, with queries, keys and values in one tensor, and gate and up
    NAMES_UNGATED = 16,      // as Llama's, without a gate
    NAMES_NEOX = 32,         // "gpt_neox.layers.0.attention.query_key_value"
    NAMES_LATENT = 64,       // as Llama's, with down and up projections of queries, keys and values
    NAMES_MIXTRAL = 128,     // as Llama's, with experts in a "block_sparse_moe"
    NAMES_GRANITE_MOE = 256, // as Llama's, with all experts of a layer in one tensor, gate and up together
    NAMES_GPT_OSS = 512,     // as Llama's, with all experts of a layer in one tensor, transposed
    NAMES_LIKE_LLAMA = NAMES_LLAMA | NAMES_AFTER | NAMES_FUSED | NAMES_UNGATED | NAMES_LATENT |
                       NAMES_MIXTRAL | NAMES_GRANITE_MOE | NAMES_GPT_OSS
} TensorNames;

// Bits: the features that a family's configuration states, since its models may differ there from `Family.is`.
typedef enum {
    SAYS_ATTENTION_BIAS = 1 << 0, // attention_bias: of queries, keys, values and the projection
    SAYS_QKV_BIAS = 1 << 1,       // use_qkv_bias: of queries, keys and values
    SAYS_MLP_BIAS = 1 << 2,       // mlp_bias
    SAYS_GROUPS = 1 << 3,         // num_key_value_heads
    SAYS_HEAD_SIZE = 1 << 4,      // head_dim; without it hidden size / heads
    SAYS_ROTARY_SHARE = 1 << 5,   // partial_rotary_factor
    SAYS_ROTARY_PCT = 1 << 6,     // the same as rotary_pct, with rotary_emb_base
    SAYS_SCALING = 1 << 7,        // rope_scaling
    SAYS_LOCAL_BASE = 1 << 8,     // rope_local_base_freq
    SAYS_WINDOW = 1 << 9,         // sliding_window: of all layers
    SAYS_WINDOW_LAYERS = 1 << 10, // the same, of layers of layer_types
    SAYS_WINDOW_SWITCH = 1 << 11, // the same, or with SAYS_WINDOW of all, where use_sliding_window is true
    SAYS_NO_ROPE = 1 << 12,       // no_rope_layers, no_rope_layer_interval
    SAYS_DROPOUTS = 1 << 13,      // resid_pdrop, embd_pdrop
    SAYS_LATENT = 1 << 14,        // q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim
    SAYS_DENSE = 1 << 15, // first_k_dense_replace: layers before those with experts, as DeepSeek has them
    // Rules without a member of their own.
    HAS_ROOT_EMBEDDING = 1 << 16, // embeddings are multiplied by sqrt(hidden size)
    NEEDS_WHOLE_HEADS = 1 << 17,  // heads divide the hidden size
    ADDS_ZERO_BIAS = 1 << 18,     // a bias of queries without one of the projection is written with zeros
    PAIRS_IN_GGUF = 1 << 19,      // llama.cpp turns neighbouring columns of a head
    ONLY_TANH_IN_GGUF = 1 << 20,  // llama.cpp has the tanh form of GELU alone
    GGUF_COPIES_TABLE =
        1 << 21, // a tied output is written, too: llama.cpp, or many versions of it, require it
    FREQUENCIES_IN_GGUF = 1 << 22, // llama.cpp takes divisors of the frequencies of rotations
    PAIRS_IN_FILES = 1 << 23,      // of latent attention: neighbouring columns of a head are turned
    EXPERTS_ARE_MLPS = 1 << 24,    // intermediate_size is the width of an expert
    SAYS_SPARSE = 1 << 25,         // decoder_sparse_step, mlp_only_layers: layers without experts
    LISTS_WINDOWS = 1 << 26,       // windows are read where layer_types says which layers have them
    SAYS_WIDTH_IN_GGUF = 1 << 27,  // with EXPERTS_ARE_MLPS: the width of an expert has a key of its own, too
} Says;

// How a member of config.json and a member of ModelShape say the same.
typedef enum {
    SAME_VALUE,
    SAME_FACTOR,    // 1 is 0 of ours: nothing is multiplied
    SAME_CAP,       // null is 0 of ours
    INVERSE_SQUARE, // of a factor of scores; head_size is 0 of ours
    TIMES_DEPTH,    // ours times sqrt(layers); null and what makes 1 are 0 of ours
    OF_WIDTH,       // hidden size / ours; likewise
    NEGATED,        // of a flag: false is true of ours
    OTHER_NAME,     // of the whole number of the row before it: read where it is there, never written
} MemberMeaning;

typedef struct {
    const char *name, *gguf; // gguf NULL: it has no such member
    const char *size;        // the member of ModelShape
    MemberMeaning meaning;
    double missing; // the value of a configuration without it, as that spells it
} FamilyMember;

enum { MAX_FAMILY_MEMBERS = 8 };

typedef struct {
    const char *architecture, *model_type; // "LlamaForCausalLM", "llama"
    ModelFamily family;                    // ANY: a model does not remember that it came from it
    const char *gguf;                      // "llama"; NULL: llama.cpp does not know it
    Dialect dialect;
    TensorNames names;
    unsigned says;
    const char *epsilon;    // the name of the epsilon of norms
    const char *activation; // the name of the member for the activation
    ModelShape is;          // what all its models are, and defaults of its configuration
    double rotary_share;    // default of partial_rotary_factor; 0: 1
    // llama.cpp scales the scores of a model of this many layers by sqrt(heads / hidden size), of others by
    // 1 / sqrt(head size), where `members` has no GGUF name for the factor.
    int gguf_hidden_scale_layers;
    FamilyMember members[MAX_FAMILY_MEMBERS]; // others; ended by one without a name
} Family;

// The epsilon of the norms of latents in all families.
#define LATENT_EPSILON 1e-6f

extern const Family families[];
extern const int num_families;

bool family_has(const Family *family, const char *size); // a member for a size of ModelShape
// Whether groups of experts are chosen by as many of their experts as here (RouterRules): by the best one in
// DeepSeek-V2, by the best two in V3.
bool family_chooses_groups(const Family *family, const ModelShape *shape);
bool size_is_of_experts(const char *size);
const Family *family_named(const char *architecture); // NULL: it is not read
// Finds the family that computes the same as a model of this shape: its own where that does, else the first. Fails with
// ERR_UNAVAILABLE, which names a part that none has. Dropout does not matter, since only training uses it.
Status family_of(const ModelShape *shape, const Family **family);
// Whether llama.cpp knows a family, and computes all that a model of this shape does: ERR_UNAVAILABLE says what not
// (gguf_limits.c).
Status family_in_gguf(const Family *family, const ModelShape *shape);
