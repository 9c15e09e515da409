// Reads a dataset on disk: checks its index, maps its tokens, and copies them.
#include "base/file.h"
#include "base/hash.h"
#include "dataset/cache.h"
#include "dataset/dataset.h"
#include "dataset/indexed_format.h"
#include "dataset/mock.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    char path[PATH_MAX];
    const char *data; // NULL when empty
    size_t bytes;
} Mapped;

struct IndexedDataset {
    Mapped idx, bin;
    int vocab_size; // 0: unchecked
    size_t token_bytes;
    int64_t num_sequences, num_documents, num_tokens;
    const char *lengths, *offsets, *documents; // into idx; unaligned
    int32_t *mock_lengths;                     // of synthetic data; else NULL
    int mock_eod;
};

static int64_t i32_at(const char *array, int64_t i) {
    int32_t value;
    memcpy(&value, array + 4 * i, sizeof value);
    return value;
}

static int64_t i64_at(const char *array, int64_t i) {
    int64_t value;
    memcpy(&value, array + 8 * i, sizeof value);
    return value;
}

static Status map_descriptor(Mapped *file, int descriptor) {
    if (!file->bytes) return OK;
    void *data = mmap(NULL, file->bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (data == MAP_FAILED)
        return fail(errno_status(), "%s: cannot map %zu bytes: %s", file->path, file->bytes, strerror(errno));
    file->data = data;
    return OK;
}

static Status map_file(Mapped *file, const char *prefix, const char *ending) {
    if (snprintf(file->path, PATH_MAX, "%s%s", prefix, ending) >= PATH_MAX)
        return fail(ERR_NO_INPUT, "%s: the name is too long", prefix);
    int descriptor;
    int64_t bytes;
    TRY(file_open_regular(file->path, &descriptor, &bytes));
    file->bytes = (size_t)bytes;
    Status status = map_descriptor(file, descriptor);
    close(descriptor);
    return status;
}

// ---- Checks, in the order of the file -----------------------------------------------------------------

static Status check_header(IndexedDataset *d) {
    const char *path = d->idx.path, *data = d->idx.data;
    if (d->idx.bytes < INDEX_HEADER_BYTES)
        return fail(ERR_DATA, "%s: %zu bytes, the header alone takes %d", path, d->idx.bytes,
                    INDEX_HEADER_BYTES);
    if (memcmp(data, "TNTIDX", 6) == 0)
        return fail(ERR_DATA, "%s: byte 0: the older format TNTIDX; preprocess the text again to get MMIDIDX",
                    path);
    if (memcmp(data, index_magic, INDEX_MAGIC_BYTES) != 0)
        return fail(ERR_DATA,
                    "%s: byte 0: not an index of a dataset (it should begin with MMIDIDX and two NULs)",
                    path);
    int64_t version = i64_at(data + INDEX_VERSION_AT, 0);
    if (version != INDEX_VERSION)
        return fail(ERR_DATA, "%s: byte %d: version %" PRId64 ", only %d is known", path, INDEX_VERSION_AT,
                    version, INDEX_VERSION);
    int type = (unsigned char)data[INDEX_TYPE_AT];
    if (type != TOKENS_U16 && type != TOKENS_I32)
        return fail(ERR_DATA, "%s: byte %d: type %d; tokens are 4 (i32) or 8 (u16)", path, INDEX_TYPE_AT,
                    type);
    d->token_bytes = type == TOKENS_U16 ? 2 : 4;
    return OK;
}

static Status check_counts(IndexedDataset *d) {
    uint64_t n = (uint64_t)i64_at(d->idx.data + INDEX_SEQUENCES_AT, 0);
    uint64_t documents = (uint64_t)i64_at(d->idx.data + INDEX_DOCUMENTS_AT, 0), need, more;
    bool overflow = __builtin_mul_overflow(n, (uint64_t)12, &need) ||
                    __builtin_mul_overflow(documents, (uint64_t)8, &more) ||
                    __builtin_add_overflow(need, more, &need) ||
                    __builtin_add_overflow(need, (uint64_t)INDEX_HEADER_BYTES, &need);
    if (!overflow && n && need + n == d->idx.bytes)
        return fail(ERR_DATA,
                    "%s: byte %" PRIu64
                    ": the index has a mode for each sequence; multimodal data sets are not supported",
                    d->idx.path, need);
    if (overflow || need != d->idx.bytes)
        return fail(ERR_DATA,
                    "%s: byte %d: %" PRIu64 " sequences and %" PRIu64
                    " document indices do not fit its %zu bytes",
                    d->idx.path, INDEX_SEQUENCES_AT, n, documents, d->idx.bytes);
    if (documents < 1 || n > INT32_MAX)
        return fail(ERR_DATA,
                    "%s: byte %d: %" PRIu64 " sequences, %" PRIu64
                    " document indices; at most %d and at least 1 are allowed",
                    d->idx.path, INDEX_SEQUENCES_AT, n, documents, INT32_MAX);
    d->num_sequences = (int64_t)n;
    d->num_documents = (int64_t)documents - 1;
    d->lengths = d->idx.data + INDEX_HEADER_BYTES;
    d->offsets = d->lengths + 4 * n;
    d->documents = d->offsets + 8 * n;
    return OK;
}

// At most 2^31 sequences of 2^31 tokens of 4 bytes: the sum fits 64 bits.
static Status check_sequences(IndexedDataset *d) {
    int64_t offset = 0;
    for (int64_t i = 0; i < d->num_sequences; i++) {
        int64_t length = i32_at(d->lengths, i), found = i64_at(d->offsets, i);
        if (length < 0)
            return fail(ERR_DATA, "%s: byte %" PRId64 ": sequence %" PRId64 " has length %" PRId64,
                        d->idx.path, INDEX_HEADER_BYTES + 4 * i, i, length);
        if (found != offset)
            return fail(ERR_DATA,
                        "%s: byte %" PRId64 ": sequence %" PRId64 " starts at byte %" PRId64
                        "; the lengths before it make %" PRId64,
                        d->idx.path, INDEX_HEADER_BYTES + 4 * d->num_sequences + 8 * i, i, found, offset);
        offset += length * (int64_t)d->token_bytes;
    }
    if ((uint64_t)offset != d->bin.bytes)
        return fail(ERR_DATA, "%s: %zu bytes, its index says %" PRId64 ": cut short, or of another run",
                    d->bin.path, d->bin.bytes, offset);
    d->num_tokens = offset / (int64_t)d->token_bytes;
    return OK;
}

static Status check_documents(const IndexedDataset *d) {
    int64_t before = 0;
    for (int64_t i = 0; i <= d->num_documents; i++) {
        int64_t at = i64_at(d->documents, i);
        bool good = i == 0 ? at == 0 : at >= before && at <= d->num_sequences;
        if (i == d->num_documents && at != d->num_sequences) good = false;
        if (!good)
            return fail(ERR_DATA,
                        "%s: byte %" PRId64 ": document index %" PRId64 " is %" PRId64
                        "; they rise from 0 to %" PRId64,
                        d->idx.path, INDEX_HEADER_BYTES + 12 * d->num_sequences + 8 * i, i, at,
                        d->num_sequences);
        before = at;
    }
    return OK;
}

static Status open_checked(IndexedDataset *d, const char *prefix) {
    TRY(map_file(&d->idx, prefix, ".idx"));
    TRY(map_file(&d->bin, prefix, ".bin"));
    TRY(check_header(d));
    TRY(check_counts(d));
    TRY(check_sequences(d));
    return check_documents(d);
}

Status indexed_dataset_open(IndexedDataset **dataset, const char *prefix, int vocab_size) {
    *dataset = calloc(1, sizeof **dataset);
    if (!*dataset) return fail(ERR_OS, "%s: no memory to open it", prefix);
    (*dataset)->vocab_size = vocab_size;
    Status status = open_checked(*dataset, prefix);
    if (status == OK) return OK;
    indexed_dataset_close(*dataset);
    *dataset = NULL;
    return status;
}

// Keeps the lengths alone: a token follows from its position.
Status indexed_dataset_open_mock(IndexedDataset **dataset, int vocab_size, int eod) {
    IndexedDataset *d = *dataset = calloc(1, sizeof *d);
    if (d) d->mock_lengths = malloc(MOCK_SEQUENCES * sizeof *d->mock_lengths);
    if (!d || !d->mock_lengths) {
        indexed_dataset_close(d);
        *dataset = NULL;
        return fail(ERR_OS, "no memory for synthetic data");
    }
    mock_lengths(d->mock_lengths);
    d->vocab_size = vocab_size;
    d->mock_eod = eod;
    d->lengths = (const char *)d->mock_lengths;
    d->num_sequences = d->num_documents = MOCK_SEQUENCES;
    for (int i = 0; i < MOCK_SEQUENCES; i++) d->num_tokens += d->mock_lengths[i];
    return OK;
}

void indexed_dataset_close(IndexedDataset *dataset) {
    if (!dataset) return;
    free(dataset->mock_lengths);
    if (dataset->idx.data) munmap((void *)(uintptr_t)dataset->idx.data, dataset->idx.bytes);
    if (dataset->bin.data) munmap((void *)(uintptr_t)dataset->bin.data, dataset->bin.bytes);
    free(dataset);
}

// ---- Reading ------------------------------------------------------------------------------------------

const char *indexed_dataset_name(const IndexedDataset *d) {
    return d->mock_lengths ? "mock data" : d->idx.path;
}

int indexed_dataset_token_bytes(const IndexedDataset *dataset) { return (int)dataset->token_bytes; }

int64_t indexed_dataset_num_sequences(const IndexedDataset *dataset) { return dataset->num_sequences; }

int64_t indexed_dataset_num_documents(const IndexedDataset *dataset) { return dataset->num_documents; }

int64_t indexed_dataset_document(const IndexedDataset *dataset, int64_t document) {
    return dataset->mock_lengths ? document : i64_at(dataset->documents, document);
}

int64_t indexed_dataset_num_tokens(const IndexedDataset *dataset) { return dataset->num_tokens; }

uint64_t indexed_dataset_hash(const IndexedDataset *d) {
    enum { BLOCKS = 64, BLOCK_BYTES = 4096 };
    if (d->mock_lengths) return 0;
    uint64_t hash = hash64_from(d->idx.data, d->idx.bytes, d->bin.bytes);
    if (d->bin.bytes <= (size_t)BLOCKS * BLOCK_BYTES) return hash64_from(d->bin.data, d->bin.bytes, hash);
    size_t apart = (d->bin.bytes - BLOCK_BYTES) / (BLOCKS - 1);
    for (size_t i = 0; i < BLOCKS; i++) hash = hash64_from(d->bin.data + i * apart, BLOCK_BYTES, hash);
    return hash;
}

int32_t indexed_dataset_length(const IndexedDataset *d, int64_t sequence) {
    CHECK(sequence >= 0 && sequence < d->num_sequences, "sequence %" PRId64 " of %" PRId64, sequence,
          d->num_sequences);
    return (int32_t)i32_at(d->lengths, sequence);
}

static int32_t token_at(const char *from, size_t token_bytes) {
    if (token_bytes == 4) return (int32_t)i32_at(from, 0);
    uint16_t small;
    memcpy(&small, from, sizeof small);
    return small;
}

static void read_mock(const IndexedDataset *d, int64_t sequence, int64_t offset, int64_t count, int32_t *out,
                      size_t stride) {
    int64_t last = d->mock_lengths[sequence] - 1;
    int64_t period = d->vocab_size > 0 ? d->vocab_size : INT32_MAX;
    for (int64_t i = offset; i < offset + count; i++, out += stride)
        *out = i == last ? d->mock_eod : (int32_t)((i + 1) % period);
}

Status indexed_dataset_read(const IndexedDataset *d, int64_t sequence, int64_t offset, int64_t count,
                            int32_t *out, size_t stride) {
    CHECK(offset >= 0 && count >= 0 && offset + count <= indexed_dataset_length(d, sequence),
          "tokens %" PRId64 " + %" PRId64 " of sequence %" PRId64, offset, count, sequence);
    if (!count) return OK;
    if (d->mock_lengths) {
        read_mock(d, sequence, offset, count, out, stride);
        return OK;
    }
    const char *from = d->bin.data + i64_at(d->offsets, sequence) + offset * (int64_t)d->token_bytes;
    int32_t limit = d->vocab_size > 0 ? d->vocab_size : INT32_MAX;
    for (int64_t i = 0; i < count; i++, from += d->token_bytes, out += stride) {
        *out = token_at(from, d->token_bytes);
        if (d->vocab_size > 0 && (*out < 0 || *out >= limit))
            return fail(ERR_DATA,
                        "%s: byte %td: sequence %" PRId64 ", position %" PRId64
                        ": token %d is not in the vocabulary of %d: made with another tokenizer?",
                        d->bin.path, from - d->bin.data, sequence, offset + i, *out, d->vocab_size);
    }
    return OK;
}
