// The folder of each machine for checkpoints in memory: where it is, whose it is, and its removal.
#include "train/memory_store.h"
#include "base/file.h"
#include "base/hash.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static const char DEFAULT_FOLDER[] = "/dev/shm";
static const char HEADING[] = "trireme checkpoints in memory, version 1";
enum { ID_BYTES = 64, RUN_BYTES = 8192 };

static Status join(char path[4096], const char *folder, const char *name) {
    if (snprintf(path, 4096, "%s/%s", folder, name) < 4096) return OK;
    return fail(ERR_CREATE, "%s: the name is too long", folder);
}

// ---- whose it is --------------------------------------------------------------------------------

static Status make_id(const char *path, char id[ID_BYTES]) {
    uint64_t number[2];
    if (getrandom(number, sizeof number, 0) != sizeof number)
        return fail(ERR_OS, "%s: no random number for it: %s", path, strerror(errno));
    snprintf(id, ID_BYTES, "%016" PRIx64 "%016" PRIx64, number[0], number[1]);
    return file_write(path, id, strlen(id));
}

// The number of the --save folder in its file .id: a folder that was removed and made again has another one.
static Status find_id(const char *save, char id[ID_BYTES], bool make) {
    char path[4096], *text = NULL;
    size_t size;
    TRY(join(path, save, ".id"));
    Status status = file_read(path, ID_BYTES - 1, &text, &size);
    if (status == OK) snprintf(id, ID_BYTES, "%s", text);
    free(text);
    if (status == OK && strspn(id, "0123456789abcdef") == 32 && !id[32]) return OK;
    return make ? make_id(path, id) : fail(ERR_NO_INPUT, "%s: no number of a run", path);
}

static void write_identity(Text *out, const char *id, const char *path) {
    text_add(out, "%s\nrun %s\nof %s\n", HEADING, id, path);
}

// What rank 0 tells all others.
typedef struct {
    char folder[4096], identity[RUN_BYTES];
} Identity;

static Status find_place(const Options *o, Identity *place) {
    char id[ID_BYTES];
    Text identity = {0};
    char *real = realpath(o->save, NULL);
    if (!real) return fail(errno_status(), "%s: %s", o->save, strerror(errno));
    Status status = find_id(o->save, id, true);
    if (status == OK) write_identity(&identity, id, real);
    const char *in = o->memory_save_dir ? o->memory_save_dir : DEFAULT_FOLDER;
    int size = snprintf(place->folder, sizeof place->folder, "%s/trireme-%ld/%016" PRIx64, in, (long)getuid(),
                        hash64_of(real, strlen(real)));
    if (status == OK && (size >= (int)sizeof place->folder || identity.size >= RUN_BYTES))
        status = fail(ERR_CREATE, "%s: the name of the folder is too long for checkpoints in memory", real);
    snprintf(place->identity, sizeof place->identity, "%s", text_string(&identity));
    text_free(&identity);
    free(real);
    return status;
}

// A run that keeps nothing in memory may go another way than an earlier one, whose memory must not be read after it.
static Status forget_id(const Options *o) {
    char path[4096];
    TRY(join(path, o->save, ".id"));
    if (unlink(path) == 0 || errno == ENOENT) return OK;
    return fail(create_status(), "%s: cannot remove: %s", path, strerror(errno));
}

// ---- folders that only this user can change -------------------------------------------------------------

static const char ADVICE[] = "remove it, or name another folder with --memory-save-dir";

// /dev/shm is everybody's: another user may have put a folder or a link there.
static Status make_private(const char *path) {
    struct stat st;
    int missing = ENOENT;
    while (missing == ENOENT) { // again after another job has removed it meanwhile
        if (mkdir(path, 0700) && errno != EEXIST)
            return fail(create_status(), "%s: cannot create: %s (--memory-save-dir names another folder)",
                        path, strerror(errno));
        missing = lstat(path, &st) ? errno : 0;
    }
    if (missing) return fail(errno_status(), "%s: %s", path, strerror(missing));
    if (!S_ISDIR(st.st_mode)) return fail(ERR_PERMISSION, "%s: it is a link or a file: %s", path, ADVICE);
    if (st.st_uid != getuid())
        return fail(ERR_PERMISSION, "%s: it belongs to another user: %s", path, ADVICE);
    if (!(st.st_mode & 077) || chmod(path, 0700) == 0) return OK;
    return fail(ERR_PERMISSION, "%s: others may use it, and it cannot be closed: %s", path, strerror(errno));
}

static void parent_of(const char *path, char parent[4096]) {
    snprintf(parent, 4096, "%.*s", (int)(strrchr(path, '/') - path), path);
}

static bool has_identity(const char *folder, const char *identity) {
    char path[4096], *text = NULL;
    size_t size;
    if (join(path, folder, "run") != OK || file_read(path, RUN_BYTES, &text, &size) != OK) return false;
    bool same = !strcmp(text, identity);
    free(text);
    return same;
}

// Removes everything but the lock, which is held.
static Status empty(const char *folder) {
    char **names = NULL, path[4096];
    int count = 0;
    TRY(folder_list(folder, &names, &count));
    Status status = OK;
    for (int i = 0; i < count && status == OK; i++) {
        struct stat st;
        if (!strcmp(names[i], ".lock")) continue;
        status = join(path, folder, names[i]);
        if (status != OK || lstat(path, &st)) continue;
        if (S_ISDIR(st.st_mode))
            status = folder_remove(path);
        else if (unlink(path))
            status = fail(errno_status(), "%s: cannot remove: %s", path, strerror(errno));
    }
    free(names);
    return status;
}

// ---- folders of dead runs -------------------------------------------------------------------------------

// True where the --save folder of the run that has left `folder` is gone, or is another run's by now. A folder whose
// parent is not there either may be on a disk that is not mounted here.
static bool is_orphan(const char *folder) {
    char path[4096], id[ID_BYTES], *text = NULL, *save, *end;
    size_t size;
    if (join(path, folder, "run") != OK || file_read(path, RUN_BYTES, &text, &size) != OK) return false;
    bool orphan = false;
    save = strstr(text, "\nof /");
    end = save ? strrchr(save, '\n') : NULL;
    if (end && end > save && end - save < 4096) {
        *end = 0;
        save += strlen("\nof ");
        if (file_exists(save))
            orphan = find_id(save, id, false) != OK || !strstr(text, id);
        else {
            parent_of(save, path);
            orphan = file_exists(*path ? path : "/");
        }
    }
    free(text);
    return orphan;
}

// A folder whose lock is held is in use. What cannot be removed stays.
static void remove_orphans(const char *base) {
    char **names = NULL, path[4096];
    int count = 0, lock;
    if (folder_list(base, &names, &count) != OK) return;
    for (int i = 0; i < count; i++) {
        if (strspn(names[i], "0123456789abcdef") != 16 || join(path, base, names[i]) != OK) continue;
        if (!is_orphan(path) || checkpoint_lock(path, 0, NULL, &lock) != OK) continue;
        (void)folder_remove(path);
        checkpoint_unlock(lock);
    }
    free(names);
}

// ---- open and close -----------------------------------------------------------------------------

bool store_is_first(const MemoryStore *store) {
    return store->world && store->machines[comm_rank(store->world)] == comm_rank(store->world);
}

// Another job that ends removes the base when it is empty, so maybe before the folder is made in it.
static Status make_folders(const char *base, const char *folder) {
    enum { MOST_TRIES = 100 };
    for (int i = 0; i < MOST_TRIES; i++) {
        TRY(make_private(base));
        if (mkdir(folder, 0700) == 0 || errno != ENOENT) break;
    }
    return make_private(folder);
}

static Status take_folder(const MemoryStore *store) {
    char run[4096];
    TRY(empty(store->folder));
    TRY(join(run, store->folder, "run"));
    return file_write(run, store->identity.data, store->identity.size);
}

static Status open_first(MemoryStore *store, const Options *o, const atomic_int *stopped) {
    char base[4096];
    parent_of(store->folder, base);
    TRY(make_folders(base, store->folder));
    remove_orphans(base);
    TRY(checkpoint_lock(store->folder, o->lock_timeout, stopped, &store->lock));
    return has_identity(store->folder, text_string(&store->identity)) ? OK : take_folder(store);
}

static Status find_machines(MemoryStore *store) {
    Comm *world = store->world;
    int mine = comm_first_here(world);
    store->machines = calloc((size_t)comm_size(world), sizeof *store->machines);
    CHECK(store->machines, "no memory for the machines of %d ranks", comm_size(world));
    comm_all_gather_host(world, &mine, store->machines, sizeof mine);
    store->num_machines = 0;
    for (int r = 0; r < comm_size(world); r++) store->num_machines += store->machines[r] == r;
    return OK;
}

static Status see_folder(const MemoryStore *store) {
    if (has_identity(store->folder, text_string(&store->identity))) return OK;
    return fail(ERR_CREATE,
                "%s: the folder for checkpoints in memory that rank %d made is not there: the ranks of a "
                "machine must share it (--memory-save-dir)",
                store->folder, comm_first_here(store->world));
}

// Collective over the world: rank 0 tells where the folder is and whose. `anew`: as if nothing were in memory anywhere.
static Status share_place(MemoryStore *store, const Options *o, Comm *world, bool anew) {
    Identity *place = calloc(1, sizeof *place);
    CHECK(place, "no memory for a path");
    Status status = comm_rank(world) == 0 && anew ? forget_id(o) : OK;
    if (status == OK && comm_rank(world) == 0) status = find_place(o, place);
    status = comm_agree(world, status);
    if (status == OK) {
        comm_broadcast_host(world, place, sizeof *place, 0);
        memcpy(store->folder, place->folder, sizeof store->folder);
        store->identity.size = 0;
        text_add(&store->identity, "%s", place->identity);
    }
    free(place);
    return status;
}

Status store_open(MemoryStore *store, const Options *o, const atomic_int *stopped, Comm *world) {
    *store = (MemoryStore){.lock = -1, .newest = -1};
    if (!o->save) return OK;
    if (o->memory_save_interval == INT_UNSET)
        return comm_agree(world, comm_rank(world) == 0 ? forget_id(o) : OK);
    TRY(share_place(store, o, world, false));
    store->world = world;
    TRY(find_machines(store));
    TRY(comm_agree(world, store_is_first(store) ? open_first(store, o, stopped) : OK));
    return comm_agree(world, see_folder(store));
}

void store_close(MemoryStore *store, int64_t on_disk) {
    char base[4096];
    bool is_old = store->settled && on_disk >= store->newest;
    if (store->world && store->lock >= 0 && store_is_first(store) && is_old &&
        checkpoint_lock_check(store->folder, store->lock) == OK) {
        parent_of(store->folder, base);
        (void)folder_remove(store->folder);
        (void)rmdir(base); // it stays while other runs use it
    }
    checkpoint_unlock(store->lock);
    for (int i = 0; i < store->num_holdings; i++) free(store->holdings[i].present);
    free(store->holdings);
    free(store->received); // files that are still mapped may belong to messages under way
    free(store->machines);
    text_free(&store->identity);
    *store = (MemoryStore){.lock = -1};
}

// ---- room ---------------------------------------------------------------------------------------

int64_t store_bytes_here(const MemoryStore *store, const double *bytes_of_rank) {
    int here = store->machines[comm_rank(store->world)];
    double sum = 0;
    for (int r = 0; r < comm_size(store->world); r++) {
        int buddy = store_buddy(store, r);
        if (store->machines[r] == here) sum += bytes_of_rank[r];
        if (buddy >= 0 && store->machines[buddy] == here) sum += bytes_of_rank[r];
    }
    return (int64_t)sum;
}

static Status check_room(const MemoryStore *store, int64_t bytes) {
    char why[4096];
    Status status = checkpoint_check_room(store->folder, bytes, store->newest < 0 ? 2 : 1);
    if (status != ERR_CREATE) return status;
    snprintf(why, sizeof why, "%s", fail_message());
    return fail(status,
                "%s. Make it larger (docker run --shm-size, or mount -o remount,size=... /dev/shm), name "
                "another folder with --memory-save-dir, or leave out --memory-save-interval",
                why);
}

Status store_check_room(const MemoryStore *store, int64_t bytes) {
    if (!store->world) return OK;
    double mine = (double)bytes;
    double *all = calloc((size_t)comm_size(store->world), sizeof *all);
    CHECK(all, "no memory for the sizes of %d ranks", comm_size(store->world));
    comm_all_gather_host(store->world, &mine, all, sizeof mine);
    int64_t here = store_bytes_here(store, all);
    free(all);
    return comm_agree(store->world, store_is_first(store) ? check_room(store, here) : OK);
}

Status store_settle(MemoryStore *store, const Options *o, int64_t step) {
    if (!store->world) return OK;
    store->newest = step;
    store->settled = true;
    if (step < 0) TRY(share_place(store, o, store->world, true));
    Status status = OK;
    if (store_is_first(store))
        status = step < 0 ? take_folder(store) : checkpoint_keep_one(store->folder, step);
    return comm_agree(store->world, status);
}
