// Turns the bytes of tokens into whole characters and holds back what may begin a stop string.
#include "infer/generate.h"
#include <string.h>

// The number of bytes at `s`, at most `size` > 0, that make one character or the longest start of one (Unicode 15,
// section 3.9, table 3-7). *valid: it is complete; *partial: more bytes may complete it; neither: it is invalid.
static size_t character(const unsigned char *s, size_t size, bool *valid, bool *partial) {
    size_t length = s[0] < 0x80   ? 1
                    : s[0] < 0xc2 ? 0
                    : s[0] < 0xe0 ? 2
                    : s[0] < 0xf0 ? 3
                    : s[0] < 0xf5 ? 4
                                  : 0;
    unsigned char lowest = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char highest = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    size_t good = 1;
    while (good < length && good < size && s[good] >= lowest && s[good] <= highest) {
        good++;
        lowest = 0x80;
        highest = 0xbf;
    }
    *valid = good == length;
    *partial = good < length && good == size;
    return good;
}

// Appends the characters of the first `size` held bytes. An incomplete last one stays held back unless `final`.
static void give(TextStream *stream, size_t size, bool final, Text *out) {
    const unsigned char *s = (const unsigned char *)stream->held.data;
    size_t done = 0;
    while (done < size) {
        bool valid, partial;
        size_t bytes = character(s + done, size - done, &valid, &partial);
        if (partial && !final) break;
        if (valid)
            text_add_bytes(out, s + done, bytes);
        else
            text_add(out, "\xef\xbf\xbd");
        done += bytes;
    }
    stream->held.size -= done;
    if (done) memmove(stream->held.data, stream->held.data + done, stream->held.size + 1);
}

// The place of the first stop string in the held bytes, or their number.
static size_t find_stop(const TextStream *stream) {
    size_t first = stream->held.size;
    for (int i = 0; i < stream->num_stops; i++) {
        const char *at =
            memmem(text_string(&stream->held), stream->held.size, stream->stops[i], strlen(stream->stops[i]));
        if (at && (size_t)(at - stream->held.data) < first) first = (size_t)(at - stream->held.data);
    }
    return first;
}

// The number of bytes at the end of the held ones that may begin a stop string.
static size_t start_of_stop(const TextStream *stream) {
    size_t most = 0;
    for (int i = 0; i < stream->num_stops; i++) {
        size_t bytes = strlen(stream->stops[i]) - 1;
        if (bytes > stream->held.size) bytes = stream->held.size;
        while (bytes > most &&
               memcmp(stream->held.data + stream->held.size - bytes, stream->stops[i], bytes) != 0)
            bytes--;
        if (bytes > most) most = bytes;
    }
    return most;
}

bool text_stream_add(TextStream *stream, const void *bytes, size_t size, Text *out) {
    text_add_bytes(&stream->held, bytes, size);
    size_t stop = find_stop(stream);
    bool found = stop < stream->held.size;
    give(stream, found ? stop : stream->held.size - start_of_stop(stream), found, out);
    if (found) text_stream_free(stream);
    return found;
}

void text_stream_finish(TextStream *stream, Text *out) { give(stream, stream->held.size, true, out); }

void text_stream_free(TextStream *stream) { text_free(&stream->held); }
