// Races in shared memory: two accesses of one word by different threads, one of them a write, that no barrier orders.
// g++ -fsanitize=thread calls a function at every access to memory; these are those functions (its library is not
// linked). A thread has a vector clock: how far it knows every other thread to be. A word has the clocks of its last
// write and of each thread's last read. What a thread does not know to be past is a race. Words are 4 bytes: kernels
// share nothing smaller.
#pragma once

extern "C" {
extern char __ehdr_start[] __attribute__((visibility("hidden")));  // where this object lies
extern char __start_emu_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_emu_shared[] __attribute__((weak, visibility("hidden")));
}

namespace emu {
typedef unsigned short Clock;
static Clock known[MOST][MOST];  // [thread, other]

struct Word {
    unsigned block;  // number of the block that used it last
    short writer;    // -1: none
    Clock written;
    const void *write_at, *read_at;  // in the code
};
static Word* words;
static Clock* reads;  // [word, thread]
static long n_words, n_dynamic;
static unsigned block_number;
static bool watching;

struct Race {
    long first, second;  // places in the code, from the start of this object
    int writes;          // bit 0: the first one writes; bit 1: the second one
    int one, other;      // threads
};
constexpr int KEPT = 16;
static Race races[KEPT];
static int n_races;

QUIET static void report(const void* first, const void* second, int writes, int one, int other) {
    const auto place = [](const void* p) { return (const char*)p - __ehdr_start - 1; };  // of the call, not behind it
    const Race race = {place(first), place(second), writes, one, other};
    for (int i = 0; i < n_races; ++i)
        if (races[i].first == race.first && races[i].second == race.second && races[i].writes == writes) return;
    if (n_races < KEPT) races[n_races++] = race;
}

QUIET static long word_at(const void* p) {
    const char* at = (const char*)p;
    if (at >= dynamic && at < dynamic + 4 * n_dynamic) return (at - dynamic) / 4;
    if (__start_emu_shared && at >= __start_emu_shared && at < __stop_emu_shared)
        return n_dynamic + (at - __start_emu_shared) / 4;
    return -1;
}

QUIET static void touch_word(long index, bool write, const void* at) {
    Word& word = words[index];
    Clock* read = reads + index * threads;
    if (word.block != block_number) {
        word = {block_number, -1, 0, nullptr, nullptr};
        memset(read, 0, threads * sizeof(Clock));
    }
    if (word.writer >= 0 && word.writer != me && word.written > known[me][word.writer])
        report(word.write_at, at, 1 | 2 * write, word.writer, me);
    if (!write) {
        read[me] = known[me][me];
        word.read_at = at;
        return;
    }
    for (int t = 0; t < threads; ++t)
        if (read[t] > known[me][t] && t != me) {
            report(word.read_at, at, 2, t, me);
            break;
        }
    word.writer = me;
    word.written = known[me][me];
    word.write_at = at;
}

QUIET static void touch(const void* p, int bytes, bool write, const void* at) {
    if (!watching) return;
    const long first = word_at(p);
    if (first < 0) return;
    for (long i = first; i < first + (bytes + 3) / 4; ++i) touch_word(i, write, at);
}

// Whoever meets at a barrier then knows what any of them knew, and goes on one tick later.
QUIET static void order(const short* who, int n) {
    if (!watching) return;
    static Clock all[MOST];
    memset(all, 0, sizeof all);
    for (int i = 0; i < n; ++i)
        for (int t = 0; t < threads; ++t) all[t] = known[who[i]][t] > all[t] ? known[who[i]][t] : all[t];
    for (int i = 0; i < n; ++i) {
        Clock* mine = known[who[i]];
        memcpy(mine, all, threads * sizeof(Clock));
        if (++mine[who[i]] == 0) fail("more barriers than a clock of the race check counts");
    }
}

QUIET static void begin_watch(bool watch, unsigned shared) {
    watching = watch;
    if (!watching) return;
    n_dynamic = (shared + 3) / 4;
    n_words = n_dynamic + (__start_emu_shared ? (__stop_emu_shared - __start_emu_shared + 3) / 4 : 0);
    words = (Word*)calloc(n_words + 1, sizeof(Word));
    reads = (Clock*)malloc((n_words + 1) * threads * sizeof(Clock));
}
QUIET static void begin_block() {
    if (!watching) return;
    ++block_number;
    for (int t = 0; t < threads; ++t) {
        memset(known[t], 0, threads * sizeof(Clock));
        known[t][t] = 1;
    }
}
QUIET static void end_watch() {
    if (!watching) return;
    watching = false;
    free(words);
    free(reads);
}
}  // namespace emu

// The races since the last call, at most KEPT.
extern "C" EXPORT QUIET int emu_races(emu::Race* to) {
    const int n = emu::n_races;
    memcpy(to, emu::races, n * sizeof(emu::Race));
    emu::n_races = 0;
    return n;
}

#define ACCESS(kind, bytes, write) \
    extern "C" QUIET void __tsan_##kind##bytes(void* p) { emu::touch(p, bytes, write, __builtin_return_address(0)); }
#define ACCESSES(bytes)                  \
    ACCESS(read, bytes, false)           \
    ACCESS(write, bytes, true)           \
    ACCESS(unaligned_read, bytes, false) \
    ACCESS(unaligned_write, bytes, true)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
#undef ACCESSES
#undef ACCESS
extern "C" QUIET void __tsan_read_range(void* p, size_t n) { emu::touch(p, n, false, __builtin_return_address(0)); }
extern "C" QUIET void __tsan_write_range(void* p, size_t n) { emu::touch(p, n, true, __builtin_return_address(0)); }
extern "C" QUIET void __tsan_func_entry(void*) {}
extern "C" QUIET void __tsan_func_exit() {}
extern "C" QUIET void __tsan_init() {}
