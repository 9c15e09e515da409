// Tests the checksums: the published algorithm's answers for every size and way of treating one, and that bytes may
// come in any parts. The answers are those of the library xxHash 0.8; a build without it has to give the same.
#include "base/hash.h"
#include "harness.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 5000 };

static unsigned char bytes[MOST];

static void fill(void) {
    uint64_t state = 1;
    for (int i = 0; i < MOST; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (unsigned char)(state >> 56);
    }
}

// Checksums of the first `size` bytes, 64 bits without and with a seed, and 128 bits, as one line of text.
static void answer(size_t size, char *line, size_t room) {
    Hash hash = hash_of(bytes, size);
    snprintf(line, room, "%016" PRIx64 " %016" PRIx64 " %016" PRIx64 "%016" PRIx64, hash64_of(bytes, size),
             hash64_from(bytes, size, 0x9e3779b97f4a7c15u * (size + 1)), hash.high, hash.low);
}

// A size or two of each branch of the algorithm.
static void known_answers(void) {
    static const struct {
        size_t size;
        const char *line;
    } KNOWN[] = {
        {0, "2d06800538d394c2 602b0e2cd6662c8b 99aa06d3014798d86001c324468d497f"},
        {1, "c00f9d4f580c0c3a 5b764728428f4e2f c89f16e01381dd11c00f9d4f580c0c3a"},
        {2, "b248061fb52bd64c 0118eba72301e729 dfff8fb46bf94599b248061fb52bd64c"},
        {3, "e92112d1e602af4a d3f94a09cd08d100 042980e29fe07a72e92112d1e602af4a"},
        {4, "9008de7e100606d1 a9c61a3a395c8021 960811bdc2cb9dc3f38741e1b9ccfbd4"},
        {8, "cca6ee6f8e080c52 ddddf4d2ed2e5307 ff5c240882695f409aac4cd28c312a76"},
        {9, "568f9d2e69ad8bd0 74a8fa884c6ab8d6 3ad200a3678150cd289d4cd1af0c84bd"},
        {16, "600a07a4f5a9911c 5690caf67f150971 09bfcf6d0d0c7508729073442c453ee7"},
        {17, "deab0265f35dfc24 305a4cda039cb247 c0e06f2f6b379f4ad0b31235d80538af"},
        {32, "d04581c566616653 b0ca25ec01284c93 0bee74e0e3ef74237a78eb27b3aef28b"},
        {33, "e2f96cd271e72881 8e9607284206a16b f01a5f3912b24aac0f2a1f3d6e780688"},
        {64, "ad0685dabb3ce66b 4161b13aeb3b1c26 7d7cc02bbb48520eed9a84b3780fc908"},
        {65, "7d4e3da065c21b2d 7a04bd19d8a5b82b 559e598dd20cb466ac9b1ce636d915da"},
        {96, "bf9a1938301428ca 92674b185048b96c 14adfddcbd9065a323c4ecc869a876ae"},
        {97, "ae7c260494b7847c 51a973609aef8310 66891c04492fc201972292c2bfea9946"},
        {128, "410bd3b4d8d84f51 fad8b338d05aa1b6 b0c97cf51fbd420ec14ef9bdf2926d91"},
        {129, "55964eec39625032 7fbacee22941a7d9 77672b5beabfd29e1c66bb88fb267529"},
        {240, "977b659bdc81fdb1 07d9ee91c53fbb91 05fb829868e88d8b0dfe588c76a0d834"},
        {241, "2cb1ed4a30c8bded e2f414f2af23c89a 19f9ed05e79938962cb1ed4a30c8bded"},
        {256, "7fd97c6450f19383 54500625b79d90ad 1104622b393022127fd97c6450f19383"},
        {257, "42c723a93a4c46b9 c5096a7e4d6866a8 15752945fc3fa2a842c723a93a4c46b9"},
        {511, "f2bf2354a8c603a7 2e62f3737153e707 2f5aa1efa546bc92f2bf2354a8c603a7"},
        {1024, "5ec111a1e5a293ae 329e6bb11b0fb20e 92da9c0cebcc106c5ec111a1e5a293ae"},
        {1025, "5ea0264528a903fc 108dcb2b2647956a 76c00571248d69785ea0264528a903fc"},
        {1088, "5caa733531330766 63e53357967499b7 67ee30e57b42f75b5caa733531330766"},
        {4096, "a76570548864595e ff72365e42694bbb 205cdca1be728c37a76570548864595e"},
        {4999, "0e2c0c9ca5b97eef c435458c2a116f25 281130371f2692f90e2c0c9ca5b97eef"},
    };
    fill();
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        char line[80];
        answer(KNOWN[i].size, line, sizeof line);
        EXPECT(!strcmp(line, KNOWN[i].line), "%zu bytes: %s", KNOWN[i].size, line);
    }
}

// The lines of all sizes of a range, as one number.
static void every_size(void) {
    static const struct {
        size_t first, last;
        uint64_t all;
    } RANGES[] = {
        {0, 16, 0xfd95829f44bba43f},     {17, 128, 0xcf87f434fa254b62},    {129, 240, 0x030bcfa08544787b},
        {241, 1024, 0x22b79e0ad73d1460}, {1025, 5000, 0xbeed5cf652b18a7d},
    };
    fill();
    for (size_t i = 0; i < sizeof RANGES / sizeof *RANGES; i++) {
        uint64_t all = 14695981039346656037u; // FNV-1a, which is not what is tested
        for (size_t size = RANGES[i].first; size <= RANGES[i].last; size++) {
            char line[80];
            answer(size, line, sizeof line);
            for (const char *c = line; *c; c++) all = (all ^ (unsigned char)*c) * 1099511628211u;
        }
        EXPECT(all == RANGES[i].all, "%zu to %zu bytes: %016" PRIx64, RANGES[i].first, RANGES[i].last, all);
    }
}

static void parts_change_nothing(void) {
    fill();
    srand(7);
    for (size_t size = 0; size < MOST; size += size < 600 ? 1 : 61) {
        Hasher hasher;
        hasher_start(&hasher);
        size_t largest = rand() % 2 ? 9 : 900;
        for (size_t at = 0, part; at < size; at += part) {
            part = (size_t)rand() % largest;
            if (part > size - at) part = size - at;
            hasher_add(&hasher, bytes + at, part);
        }
        EXPECT(hash_same(hasher_end(&hasher), hash_of(bytes, size)), "%zu bytes in parts", size);
        EXPECT(hasher_end64(&hasher) == hash64_of(bytes, size), "%zu bytes in parts, 64 bits", size);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"known_answers", known_answers},
                                      {"every_size", every_size},
                                      {"parts_change_nothing", parts_change_nothing},
                                      {0}},
                       argc, argv);
}
