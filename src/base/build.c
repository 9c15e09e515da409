// Finds the build id that the linker wrote into this program.
#include "base/version.h"
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    char *text;
    size_t size;
} Found;

static void print_bytes(const unsigned char *bytes, size_t count, Found *found) {
    for (size_t i = 0; i < count && 2 * i + 2 < found->size; i++)
        snprintf(found->text + 2 * i, 3, "%02x", bytes[i]);
}

static size_t padded(size_t size) { return (size + 3) / 4 * 4; }

static void search_notes(const unsigned char *notes, size_t size, Found *found) {
    ElfW(Nhdr) note;
    for (size_t at = 0; at + sizeof note <= size;
         at += sizeof note + padded(note.n_namesz) + padded(note.n_descsz)) {
        memcpy(&note, notes + at, sizeof note);
        size_t value = at + sizeof note + padded(note.n_namesz);
        bool is_id = note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && value + note.n_descsz <= size &&
                     !memcmp(notes + at + sizeof note, "GNU", 4);
        if (is_id) print_bytes(notes + value, note.n_descsz, found);
    }
}

// The first object that the loader lists is the program.
static int search_program(struct dl_phdr_info *info, size_t size, void *self) {
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_NOTE)
            search_notes((const unsigned char *)(info->dlpi_addr + part->p_vaddr), part->p_memsz, self);
    }
    return 1;
}

void build_id(char *text, size_t size) {
    snprintf(text, size, "unknown");
    dl_iterate_phdr(search_program, &(Found){text, size});
}
