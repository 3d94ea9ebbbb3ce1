// One thread a lane, in the order of events that the reference tells; what it does for subsets of lanes is an `if` here.
// Money and prices are integers, so every backend agrees to the last unit. There are few lanes, and what takes time is a
// load that waits for another: a warp a block spreads them over the SMs, and all that a lane may need of the row ahead is
// asked for as soon as the lane's own state is there.
#include "common.cuh"

struct Book { const int *bid_px, *ask_px, *bid_sz, *ask_sz; int levels; };

// The first level of both sides of a row.
struct Touch {
    int bid_px, ask_px, bid_sz, ask_sz;
    __device__ Touch(const Book& book, i64 row)
        : bid_px(book.bid_px[row * book.levels]), ask_px(book.ask_px[row * book.levels]),
          bid_sz(book.bid_sz[row * book.levels]), ask_sz(book.ask_sz[row * book.levels]) {}
};

// Sums of the prices of `lots` lots and of the `first` ones among them, walking the opposite side from the touch.
__device__ inline void walk(
    const Book& book, const Touch& touch, i64 row, bool buy, i64 lots, i64 first, i64& total, i64& total_first) {
    const int *prices = (buy ? book.ask_px : book.bid_px) + row * book.levels,
              *sizes = (buy ? book.ask_sz : book.bid_sz) + row * book.levels;
    int px = buy ? touch.ask_px : touch.bid_px, size = buy ? touch.ask_sz : touch.bid_sz;
    i64 last = 0;
    total = total_first = 0;
    for (int level = 0; px != UNDEF;) {  // nothing is known behind a level that is not there
        last = px;
        const i64 take = size == 0 ? lots : min((i64)size, lots);
        const i64 take_first = min(take, first);
        total += take * last; total_first += take_first * last;
        lots -= take; first -= take_first;
        if (!lots || ++level == book.levels) break;
        px = prices[level]; size = sizes[level];
    }
    const i64 beyond = buy ? last + 1 : last - 1;
    total += lots * beyond; total_first += first * beyond;
}

extern "C" __global__ void env_step(
    const int* __restrict__ action, const i64* __restrict__ step,
    const int* __restrict__ mid2, const int* __restrict__ fill_row, const int* __restrict__ last,  // [N]
    const int* __restrict__ bid_px, const int* __restrict__ ask_px, const int* __restrict__ bid_sz,  // [N, LV]
    const int* __restrict__ ask_sz,
    const int* __restrict__ starts,  // [S]
    const int* __restrict__ targets,  // [A]
    const int* __restrict__ trail_ticks,  // [4]
    const i64* __restrict__ fee, const i64* __restrict__ drawdown, const int* __restrict__ episode_rows,  // [B]
    const int* __restrict__ limit_row, int* __restrict__ start_row, int* __restrict__ row,
    int* __restrict__ end_row, int* __restrict__ episode_row, int* __restrict__ position,
    int* __restrict__ target, int* __restrict__ pending_row, i64* __restrict__ cash,
    i64* __restrict__ equity, i64* __restrict__ peak, i64* __restrict__ entry_cash,
    int* __restrict__ best, int* __restrict__ trail, int* __restrict__ hold_rows, i8* __restrict__ done,
    u8* __restrict__ mask,  // [B, A]
    float* __restrict__ reward, i8* __restrict__ valid,  // [B]
    float* __restrict__ private,  // [B, 8]
    i8* __restrict__ ordered, i8* __restrict__ action_done, i8* __restrict__ closed,  // [B]
    i64* __restrict__ closed_pnl, int* __restrict__ closed_rows, int* __restrict__ closed_lots,
    int* __restrict__ filled, i64* __restrict__ fee_paid, i64* __restrict__ spread_paid,
    const u32 seed, const int lots_large, const float inventory_penalty, const float message_cost,
    const i64 drawdown_scale, const int hold_scale,
    const int B, const int N, const int LV, const int S, const int A) {
    const Book book = {bid_px, ask_px, bid_sz, ask_sz, LV};
    FOR_EACH(b, B) {
        const bool running = done[b] == 0;
        int r = row[b], pos = position[b], goal = target[b], pending = pending_row[b], stop = trail[b];
        int age = episode_row[b] + running, held = hold_rows[b] + (pos != 0), final_row = end_row[b], over = done[b];
        i64 money = cash[b], worth = equity[b], top = peak[b], entry = entry_cash[b];
        const int asked = action[b], given = start_row[b], longest = episode_rows[b], best_before = best[b];
        const i64 deepest = drawdown[b], rate = fee[b];
        const int ahead = r + running, fill_now = fill_row[r];
        int fill_next = fill_row[ahead], mid_ticks2 = mid2[ahead];
        const int asked_target = targets[asked];
        Touch touch(book, ahead);

        // 1. The decision on row t.
        const bool allowed = running & (mask[b * A + asked] != 0);
        const int chosen = allowed ? asked : HOLD, wanted = allowed ? asked_target : targets[HOLD];
        const bool is_order = wanted != NO_ORDER;
        if (is_order) { goal = wanted; pending = fill_now; }
        stop += (chosen == LOOSEN) - (chosen == TIGHTEN);
        r = ahead;
        if (!running && given != START_PARKED) {  // a new episode
            const u32 word = philox(step[0], (u32)b, PURPOSE_RESET, seed).x0;
            r = given >= 0 ? given : starts[((u64)word * (u32)S) >> 32];
            start_row[b] = given >= 0 ? START_PARKED : given;
            final_row = min(last[r], limit_row[b]);
            age = pos = goal = held = over = 0;
            money = worth = top = entry = 0;
            fill_next = fill_row[r];
            mid_ticks2 = mid2[r];
            touch = Touch(book, r);
        }

        // 2. Row r closes.
        const i64 mid = (i64)mid_ticks2 * HALF_MILLI;
        const int carried = pos;
        const bool fallen = running && top - (money + carried * mid) >= deepest;
        const bool ending = fallen || (running && (r >= final_row || age >= longest));
        over += ending + fallen;  // 1 truncated, 2 drawdown

        // 3. Trade on r's book.
        const bool due = goal != pos && pending <= r;
        if (ending) goal = 0;
        if (due || ending) pos = goal;
        const i64 traded = pos - carried;
        i64 pnl = 0, fees = 0, spread = 0;
        int rows_held = 0, lots_closed = 0;
        bool leaves = false;
        if (traded) {
            // A position left for flat or for the other side ends a round trip; the rest of a flip opens the next one.
            leaves = carried != 0 && carried * pos <= 0;
            const i64 n = traded < 0 ? -traded : traded, sign = traded < 0 ? -1 : 1;
            const i64 n_close = leaves ? abs(carried) : 0;
            i64 total, total_close;
            walk(book, touch, r, traded > 0, n, n_close, total, total_close);
            const i64 at_close = money - sign * MILLI * total_close - rate * n_close;
            if (leaves) {
                pnl = at_close - entry;
                rows_held = held;
                lots_closed = carried;
                entry = at_close;
            }
            fees = rate * n;
            spread = sign * (total * MILLI - n * mid);
            money -= sign * MILLI * total + fees;
        }

        // 4. The stop.
        const bool fresh = carried * pos <= 0;  // flat, just opened, or flipped
        if (fresh) { held = 0; stop = NO_STOP; }
        const int side = (pos > 0) - (pos < 0);
        const int at_touch = side > 0 ? touch.bid_px : touch.ask_px;
        const int given_back = fresh ? 0 : max(side * (best_before - at_touch), 0);
        if (pos == goal && given_back >= trail_ticks[stop] && side != 0) { goal = 0; pending = fill_next; }

        // 5. Equity, reward, and what is seen next.
        const i64 now = money + pos * mid;
        top = max(top, now);
        reward[b] = (float)((double)(now - worth) / MILLI - (double)inventory_penalty * (carried * carried) -
                            (chosen != HOLD ? (double)message_cost : 0.0));
        const bool settled = pos == goal, stays = (i64)pos * goal > 0;
        u8* ok = mask + b * A;
        for (int a = 0; a < A; ++a) ok[a] = settled & (pos != targets[a]);
        ok[FLAT_FROM_LONG] = settled && pos > 0;
        ok[FLAT_FROM_SHORT] = settled && pos < 0;
        ok[HALF_FLAT_LONG] = settled && pos == lots_large;
        ok[HALF_FLAT_SHORT] = settled && pos == -lots_large;
        ok[HOLD] = 1;
        ok[TIGHTEN] = stays && stop > 0;  // a stop of a position that is about to be left has no effect
        ok[LOOSEN] = stays && stop < NO_STOP;

        const float widest = trail_ticks[NO_STOP - 1], open = (float)(now - entry);
        float4* seen = (float4*)(private + b * 8);
        seen[0] = make_float4((float)pos / lots_large, (float)goal / lots_large, (float)stop / NO_STOP,
                              fminf(given_back / widest, 1.0f));
        seen[1] = make_float4(fminf(max(trail_ticks[stop] - given_back, 0) / widest, 1.0f),
                              open / ((float)PNL_SCALE + fabsf(open)),
                              fminf(log1pf((float)held) / log1pf((float)hold_scale), 1.0f),
                              fminf((float)(top - now) / (float)drawdown_scale, 1.0f));

        row[b] = r; position[b] = pos; target[b] = goal; pending_row[b] = pending; trail[b] = stop;
        episode_row[b] = age; hold_rows[b] = held; end_row[b] = final_row; done[b] = (i8)over;
        cash[b] = money; equity[b] = now; peak[b] = top; entry_cash[b] = entry; best[b] = at_touch + side * given_back;
        valid[b] = running; ordered[b] = is_order; action_done[b] = (i8)chosen;
        closed[b] = leaves; closed_pnl[b] = pnl; closed_rows[b] = rows_held; closed_lots[b] = lots_closed;
        filled[b] = (int)traded; fee_paid[b] = fees; spread_paid[b] = spread;
    }
}
