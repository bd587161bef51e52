// What a step does between two passes: guesses are drawn, drafts are judged, tokens are kept.
//
// Belongs here: loops over rows, nodes and tokens on plain pointers. Does not belong here: torch, which calls these when
// (`fused_ops.py`), and passes (`few_rows.cpp`).
//
// The rule of this file: **results are the bits of the torch lines that a call replaces.** Single precision is rounded after
// every operation, so this file is compiled without fused multiply-adds. Softmax, logarithms and sums stay in torch, whose
// order of operations is not ours to know. All arguments are int64 or addresses; an address of 0 stands for None.

#include <cstdint>
#include <cstring>

namespace {

typedef float Lanes __attribute__((vector_size(64)));
typedef int32_t Indices __attribute__((vector_size(64)));
constexpr int64_t LANES = 16;
constexpr int OUTSIDE = -2;  // a token outside the vocabulary, or a node outside its tree or row

inline Lanes load(const float* from) {
    Lanes lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return lanes;
}

// Where the greatest of `count` values stands, the first of equal ones; a value that is not a number is the greatest.
// `value(v, 1.0f or Lanes)` gives the value at v, or the values from v on.
template <typename One, typename Many>
int64_t greatest(int64_t count, One one, Many many) {
    float best = one(0);
    int64_t place = 0;
    bool is_number = best == best;
    int64_t v = 0;
    if (count >= LANES) {
        Lanes most = many(0);
        Indices step = {}, at = {};
        Indices strange = most != most;
        for (v = LANES; v + LANES <= count; v += LANES) {
            const Lanes values = many(v);
            step += 1;
            const Indices more = values > most;
            most = more ? values : most;
            at = more ? step : at;
            strange |= values != values;
        }
        place = -1;
        for (int64_t lane = 0; lane < LANES; lane++) {
            const int64_t stands = at[lane] * LANES + lane;
            is_number &= !strange[lane];
            if (place < 0 || most[lane] > best || (most[lane] == best && stands < place)) best = most[lane], place = stands;
        }
    }
    for (; v < count; v++) {
        const float each = one(v);
        is_number &= each == each;
        if (each > best) best = each, place = v;
    }
    if (is_number) return place;
    for (v = 0; one(v) == one(v);) v++;
    return v;
}

inline int64_t largest(const float* values, int64_t count) {
    return greatest(count, [=](int64_t v) { return values[v]; }, [=](int64_t v) { return load(values + v); });
}

// The exponential race: whose arrival `noise / probability` comes first.
inline int64_t winner(const float* probabilities, const float* noise, int64_t count) {
    return greatest(
        count, [=](int64_t v) { return probabilities[v] / noise[v]; },
        [=](int64_t v) { return load(probabilities + v) / load(noise + v); });
}

// What `first` has beyond `second`; false where that is nothing.
inline bool beyond(const float* first, const float* second, float* left, int64_t count) {
    bool any = false;
    for (int64_t v = 0; v < count; v++) {
        const float more = first[v] - second[v];
        left[v] = more < 0 ? 0.0f : more;
        any |= left[v] > 0;
    }
    return any;
}

// What `first` has beyond `second`, or `first` where that is nothing, as numbers that sum to one; `into` may be `first`.
void remainder(const float* first, const float* second, float* into, int64_t count) {
    bool any = false;
    for (int64_t v = 0; v < count; v++) any |= first[v] > second[v];
    double total = 0;
    for (int64_t v = 0; v < count; v++) {
        const float more = first[v] - second[v];
        total += into[v] = !any ? first[v] : more < 0 ? 0.0f : more;
    }
    for (int64_t v = 0; v < count; v++) into[v] /= (float)total;
}

// LANTERN's table of neighbours [V, width], and for each round's share of them the tokens that have a token among these
// (its admirers): those of round r and token v are entries starts[r, v] to starts[r, v + 1] - 1 of a round's own.
struct LookAlikes {
    const int64_t *near, *admirers, *starts;
    int64_t width, rounds;

    static float sum(const float* values, const int64_t* from, int64_t count) {
        float total = 0;
        for (int64_t i = 0; i < count; i++) total += values[from[i]];
        return total;
    }

    // See `lantern_drawn.relaxed_target`. At most `left` moves; `multiplier` is 0 for none. Scratch has room for 4 V.
    void relax(
        const float* p, const float* q, float left, float multiplier, int64_t vocab, float* scratch, float* relaxed
    ) const {
        float *spare = scratch, *wish = spare + vocab, *given = wish + vocab, *granted = given + vocab;
        const int64_t* round_admirers = admirers;
        std::memcpy(relaxed, p, vocab * sizeof(float));
        for (int64_t round = 0; round < rounds; round++) {
            const int64_t some = width >> 2 * (rounds - 1 - round), *start = starts + round * (vocab + 1);
            for (int64_t v = 0; v < vocab; v++) spare[v] = relaxed[v] - q[v] < 0 ? 0.0f : relaxed[v] - q[v];
            for (int64_t v = 0; v < vocab; v++) {
                const float most = multiplier * p[v], wanted = multiplier && most < q[v] ? most : q[v];
                const float lacking = wanted - relaxed[v];
                const float offered = lacking > 0 ? sum(spare, near + v * width, some) : 0.0f;
                wish[v] = offered > 1e-12f ? lacking / offered : 0.0f;
            }
            double total = 0;
            for (int64_t v = 0; v < vocab; v++) {
                const float asked = spare[v] > 0 ? sum(wish, round_admirers + start[v], start[v + 1] - start[v]) : 0.0f;
                const float share = 1.0f / (asked < 1 ? 1.0f : asked);
                total += given[v] = spare[v] * asked * share;
                granted[v] = spare[v] * share;
            }
            const float moved = (float)total, share = moved > left ? left / moved : 1.0f;
            for (int64_t v = 0; v < vocab; v++) {
                const float received = wish[v] > 0 ? wish[v] * sum(granted, near + v * width, some) : 0.0f;
                relaxed[v] = relaxed[v] + share * (received - given[v]);
            }
            left = left - share * moved < 0 ? 0.0f : left - share * moved;
            round_admirers += vocab * some;
        }
        for (int64_t v = 0; v < vocab; v++) relaxed[v] = relaxed[v] < 0 ? 0.0f : relaxed[v];
    }
};

// Numbers of consecutive counters for every row.
template <typename Number>
struct Ahead {
    const Number* numbers;  // [B, width, size]
    const int64_t* first;   // [B]
    int64_t width, size;

    const Number* at(int64_t row, int64_t counter) const {
        return numbers + (row * width + counter - first[row]) * size;
    }
};

// Rows of distributions; the distance of rows and nodes in floats.
struct Distributions {
    const float* numbers;
    int64_t of_row, of_node;

    const float* at(int64_t row, int64_t node) const { return numbers + row * of_row + node * of_node; }
};

// SplitMix64's output function and the odd constant by which its states advance; see `sampling.py`.
constexpr uint64_t ADVANCE = 0x9E3779B97F4A7C15;

inline uint64_t scrambled(uint64_t bits) {
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
    return bits ^ (bits >> 31);
}

}  // namespace

extern "C" {

// Uniform numbers [B, n, size] of keys [B] and counters [B, n].
int judging_uniform(
    const int64_t* keys, const int64_t* counters, int64_t rows, int64_t per_row, int64_t size, double* numbers
) {
    for (int64_t b = 0; b < rows; b++)
        for (int64_t i = 0; i < per_row; i++) {
            const uint64_t state = scrambled((uint64_t)counters[b * per_row + i] * ADVANCE + (uint64_t)keys[b]);
            double* here = numbers + (b * per_row + i) * size;
            for (int64_t v = 0; v < size; v++) {
                const uint64_t bits = scrambled(state + (uint64_t)(v + 1) * ADVANCE) >> 11 | 1;
                here[v] = (double)(int64_t)bits * 0x1p-53;
            }
        }
    return 0;
}

// Whether every row of `nodes` rows of logits has a greatest one that is finite.
int judging_finite(const float* logits, int64_t nodes, int64_t vocab) {
    for (int64_t node = 0; node < nodes; node++) {
        const float most = logits[node * vocab + largest(logits + node * vocab, vocab)];
        if (!(most - most == 0)) return 0;
    }
    return 1;
}

// [rows] the largest of each row of [rows, count].
int judging_largest(const float* values, int64_t rows, int64_t count, int64_t* places) {
    for (int64_t b = 0; b < rows; b++) places[b] = largest(values + b * count, count);
    return 0;
}

// [B, n] the winner of the race of each node, whose counter is counters[b, i].
int judging_race(
    const float* numbers, int64_t of_row, int64_t of_node, const float* noise, const int64_t* first, int64_t width,
    const int64_t* counters, int64_t rows, int64_t nodes, int64_t vocab, int64_t* tokens
) {
    const Distributions target = {numbers, of_row, of_node};
    const Ahead<float> race = {noise, first, width, vocab};
    for (int64_t b = 0; b < rows; b++)
        for (int64_t i = 0; i < nodes; i++) {
            const int64_t place = b * nodes + i;
            tokens[place] = winner(target.at(b, i), race.at(b, counters[place]), vocab);
        }
    return 0;
}

// Descend from the root as long as the token that follows a node is among its children. Chains have no path to write.
int judging_walk(
    const int64_t* tokens, const int64_t* parents, const bool* valid, const float* numbers, int64_t of_row,
    int64_t of_node, const float* noise, const int64_t* first, int64_t width, const int64_t* lengths, int64_t rows,
    int64_t nodes, int64_t depth, int64_t vocab, int64_t* path, int64_t* accepted, int64_t* next
) {
    const Distributions target = {numbers, of_row, of_node};
    const Ahead<float> race = {noise, first, width, vocab};
    for (int64_t b = 0; b < rows; b++) {
        const int64_t* tokens_here = tokens + b * nodes;
        const int64_t* parents_here = parents + b * nodes;
        int64_t node = 0, level = 0, token;
        if (path) path[b * (depth + 1)] = 0;
        while (true) {
            const float* given = target.at(b, node);
            token = noise ? winner(given, race.at(b, lengths[b] + level), vocab) : largest(given, vocab);
            int64_t child = nodes;
            if (path) {
                if (level < depth)
                    for (child = 0; child < nodes && (parents_here[child] != node || tokens_here[child] != token);) child++;
            } else if (node + 1 < nodes && valid[b * nodes + node + 1] && tokens_here[node + 1] == token) {
                child = node + 1;
            }
            if (child == nodes || level == depth) break;
            node = child, level++;
            if (path) path[b * (depth + 1) + level] = node;
        }
        accepted[b] = level, next[b] = token;
        if (path)
            for (int64_t rest = level + 1; rest <= depth; rest++) path[b * (depth + 1) + rest] = node;
    }
    return 0;
}

// LANTERN's walk: a drawn token that a child's neighbours contain is given to the first child that may take it. A child takes
// the longest prefix of its neighbours [V, width] whose cumulative probability fits its bound: what earlier children left of
// `delta`, or, with a multiplier, (multiplier - 1) p(x). Children are never taken.
int judging_lantern(
    const int64_t* tokens, const int64_t* parents, const float* numbers, int64_t of_row, int64_t of_node,
    const float* noise, const int64_t* first, int64_t ahead, const int64_t* lengths, const int64_t* neighbours,
    int64_t width, const float* bounds, int64_t rows, int64_t nodes, int64_t depth, int64_t vocab, float* free,
    int64_t* path, int64_t* accepted, int64_t* next, bool* relaxed
) {
    const Distributions target = {numbers, of_row, of_node};
    const Ahead<float> race = {noise, first, ahead, vocab};
    const float delta = bounds[0], factor = bounds[1];
    const bool multiplies = bounds[2] > 0;
    std::memset(relaxed, 0, rows * depth);
    for (int64_t i = 0; i < rows * nodes; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab) return OUTSIDE;
    for (int64_t b = 0; b < rows; b++) {
        const int64_t* tokens_here = tokens + b * nodes;
        const int64_t* parents_here = parents + b * nodes;
        int64_t* path_here = path + b * (depth + 1);
        int64_t node = 0, level = 0, token;
        path_here[0] = 0;
        while (true) {
            const float* given = target.at(b, node);
            const int64_t drawn = winner(given, race.at(b, lengths[b] + level), vocab);
            token = drawn;
            if (level == depth) break;
            int64_t child = nodes;
            for (int64_t i = 0; i < nodes && child == nodes; i++)
                if (parents_here[i] == node && tokens_here[i] == drawn) child = i;
            if (child == nodes) {
                std::memcpy(free, given, vocab * sizeof(float));
                for (int64_t i = 0; i < nodes; i++)
                    if (parents_here[i] == node) free[tokens_here[i]] = 0;
                float remaining = delta;
                for (int64_t i = 0; i < nodes && child == nodes && free[drawn] > 0; i++) {
                    if (parents_here[i] != node) continue;
                    const int64_t* near = neighbours + tokens_here[i] * width;
                    const float bound = multiplies ? given[tokens_here[i]] * factor : remaining;
                    double reach = 0;
                    float taken = 0;
                    for (int64_t j = 0; j < width; j++) {
                        reach += free[near[j]];
                        if (!((float)reach <= bound)) break;
                        taken = (float)reach;
                        if (near[j] == drawn) child = i;
                    }
                    remaining = remaining - taken;
                }
                if (child < nodes) token = tokens_here[child], relaxed[b * depth + level] = true;
            }
            if (child == nodes) break;
            node = child, level++;
            path_here[level] = node;
        }
        accepted[b] = level, next[b] = token;
        for (int64_t rest = level + 1; rest <= depth; rest++) path_here[rest] = node;
    }
    return 0;
}

// Test the children of each node in order with probability min(1, p(x) / q(x)), p being what the rejected ones before have
// left, and descend to the first that passes; `tests` are [B, depth, children]. With `limits`, of what moves in all and by
// what factor (or 0), p is relaxed towards the first child's q; see `exact.multi_round_walk`.
int judging_rounds(
    const int64_t* tokens, const int64_t* parents, const float* target_numbers, int64_t of_row, int64_t of_node,
    const float* draft_numbers, int64_t draft_of_row, int64_t draft_of_node, const double* tests, const float* noise,
    const int64_t* first, int64_t ahead, const int64_t* lengths, const int64_t* near, const int64_t* admirers,
    const int64_t* starts, int64_t width, int64_t num_rounds, const float* limits, int64_t rows, int64_t nodes,
    int64_t children, int64_t depth, int64_t vocab, float* scratch, int64_t* path, int64_t* accepted, int64_t* next,
    bool* relaxed
) {
    const Distributions target = {target_numbers, of_row, of_node};
    const Distributions draft = {draft_numbers, draft_of_row, draft_of_node};
    const Ahead<float> race = {noise, first, ahead, vocab};
    const LookAlikes alike = {near, admirers, starts, width, num_rounds};
    float *left = scratch + 4 * vocab, *own_left = left + vocab;
    std::memset(relaxed, 0, rows * depth);
    for (int64_t i = 0; i < rows * nodes; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab) return OUTSIDE;
    for (int64_t b = 0; b < rows; b++) {
        int64_t* path_here = path + b * (depth + 1);
        int64_t node = 0, level = 0;
        path_here[0] = 0;
        while (true) {
            const float *own = target.at(b, node), *now = own;  // what is left of p, and of p relaxed
            int64_t child = nodes, rank = 0;
            for (int64_t i = 0; i < nodes && child == nodes && level < depth && rank < children; i++) {
                if (parents[b * nodes + i] != node) continue;
                const int64_t token = tokens[b * nodes + i];
                const float* q = draft.at(b, i);
                const double compared = tests[(b * depth + level) * children + rank] * (double)q[token];
                const bool by_itself = compared < (double)own[token];
                if (limits && rank == 0 && !by_itself) {
                    alike.relax(own, q, limits[0], limits[1], vocab, scratch, left);
                    now = left;
                }
                rank++;
                if ((by_itself && rank == 1) || compared < (double)now[token]) {
                    child = i, relaxed[b * depth + level] = !by_itself;
                    continue;
                }
                remainder(now, q, left, vocab);
                if (limits) remainder(own, q, own_left, vocab);
                now = left, own = limits ? own_left : left;
            }
            if (child == nodes) {
                accepted[b] = level, next[b] = winner(now, race.at(b, lengths[b] + level), vocab);
                break;
            }
            node = child, level++;
            path_here[level] = node;
        }
        for (int64_t rest = level + 1; rest <= depth; rest++) path_here[rest] = node;
    }
    return 0;
}

// The best of a dynamic tree's nodes, `best` [B, m] in rising order, as a tree whose root comes first. The first `top_k` of
// its `seen` nodes stand below the root; then come the children of each level's expanded nodes, `frontier` [levels, B, top_k].
int judging_grown(
    const int64_t* roots, const int64_t* best, const int64_t* all_tokens, const float* all_scores,
    const int64_t* frontier, int64_t rows, int64_t count, int64_t seen, int64_t top_k, int64_t* tokens,
    int64_t* parents, int64_t* depth, float* scores
) {
    for (int64_t b = 0; b < rows; b++) {
        const int64_t* best_here = best + b * count;
        const int64_t at = b * (count + 1);
        tokens[at] = roots[b], parents[at] = -1, depth[at] = 0, scores[at] = 0;
        for (int64_t i = 0; i < count; i++) {
            const int64_t node = best_here[i], to = at + i + 1;
            tokens[to] = all_tokens[b * seen + node];
            scores[to] = all_scores[b * seen + node];
            parents[to] = 0, depth[to] = 1;
            if (node < top_k) continue;
            const int64_t level = (node - top_k) / (top_k * top_k), place = (node - top_k) % (top_k * top_k);
            const int64_t parent = frontier[(level * rows + b) * top_k + place / top_k];
            int64_t stands = 0;
            while (stands < count && best_here[stands] < parent) stands++;
            parents[to] = stands + 1, depth[to] = level + 2;
        }
    }
    return 0;
}

// Accept tokens of a chain with probability min(1, numerator / denominator), up to the first rejection, and draw the next:
// behind a rejection from what p has beyond q, or beyond min(q, w p) with weights [L].
int judging_chain(
    const int64_t* tokens, const int64_t* parents, const bool* valid, const float* target_numbers, int64_t of_row,
    int64_t of_node, const float* draft_numbers, int64_t draft_of_row, int64_t draft_of_node, const double* uniform,
    const int64_t* uniform_first, int64_t uniform_width, const float* noise, const int64_t* first, int64_t width,
    const int64_t* lengths, const float* numerators, const float* denominators, const float* weights, int64_t rows,
    int64_t nodes, int64_t length, int64_t depth, int64_t vocab, float* left, int64_t* accepted, int64_t* next,
    bool* relaxed
) {
    const Distributions target = {target_numbers, of_row, of_node};
    const Distributions draft = {draft_numbers, draft_of_row, draft_of_node};
    const Ahead<double> tests = {uniform, uniform_first, uniform_width, 1};
    const Ahead<float> race = {noise, first, width, vocab};
    for (int64_t b = 0; b < rows; b++) {
        int64_t count = 0;
        bool going_on = true;
        for (int64_t i = 0; i < length; i++) {
            const int64_t token = tokens[b * nodes + i + 1];
            if (token < 0 || token >= vocab) return OUTSIDE;
            const float own = target.at(b, i)[token], proposed = draft.at(b, i + 1)[token];
            const float numerator = numerators ? numerators[b * length + i] : own;
            const float denominator = numerators ? denominators[b * length + i] : proposed;
            const double threshold = *tests.at(b, lengths[b] + i);
            going_on = going_on && valid[b * nodes + i + 1] && threshold * (double)denominator < (double)numerator;
            count += going_on;
            if (relaxed) relaxed[b * depth + i] = threshold * (double)proposed >= (double)own;
        }
        if (relaxed)
            for (int64_t i = length; i < depth; i++) relaxed[b * depth + i] = false;
        const int64_t child = count < length ? count + 1 : length;
        const float *last = target.at(b, count), *drawn_from = draft.at(b, child), *drawn = last;
        if (parents[b * nodes + child] == count) {
            if (weights && length > 0) {
                const float weight = weights[count < length ? count : length - 1];
                for (int64_t v = 0; v < vocab; v++) {
                    const float given = weight * last[v];
                    left[v] = given < drawn_from[v] ? given : drawn_from[v];
                }
                drawn_from = left;
            }
            if (beyond(last, drawn_from, left, vocab)) drawn = left;
        }
        accepted[b] = count;
        next[b] = winner(drawn, race.at(b, lengths[b] + count), vocab);
    }
    return 0;
}

// A Jacobi window: guess k stands k positions behind the root, where the last chain had node accepted + k. Its last node is
// `last` [B] or, alike in all rows, `last_node`. Noise counts on from `counters` [B], that of the first guess. With uniform
// numbers [B, window] the old guess x stays with probability min(1, p(x) / q(x)).
int judging_window(
    const float* opinions, const int64_t* old_tokens, const float* old_from, const int64_t* accepted, const int64_t* last,
    int64_t last_node, const int64_t* roots, const float* noise, const int64_t* first, int64_t width,
    const int64_t* counters, const double* uniform, int64_t random_guess, int64_t rows, int64_t nodes, int64_t window,
    int64_t vocab, float* scratch, int64_t* tokens, float* drawn_from
) {
    const Ahead<float> race = {noise, first, width, vocab};
    const float even = (float)(1.0 / (double)vocab);
    float* evenly = scratch + vocab;
    for (int64_t v = 0; v < vocab; v++) evenly[v] = even;
    for (int64_t b = 0; b < rows; b++) {
        const int64_t end = last ? last[b] : last_node;
        int64_t* row = tokens + b * (window + 1);
        row[0] = roots[b];
        if (drawn_from) std::memset(drawn_from + b * (window + 1) * vocab, 0, vocab * sizeof(float));
        for (int64_t k = 1; k <= window; k++) {
            const int64_t node = accepted[b] + k, before = node + 1 < end ? node + 1 : end;
            const float* wanted = opinions + (b * nodes + (node < end ? node : end)) * vocab;
            if (random_guess && node > end) wanted = evenly;
            const float* number = race.at(b, counters[b] + k - 1);
            if (uniform && node + 1 <= end) {
                const int64_t old = old_tokens[b * nodes + before];
                const float* from = old_from + (b * nodes + before) * vocab;
                if (uniform[b * window + k - 1] * (double)from[old] < (double)wanted[old]) {
                    row[k] = old;
                } else {
                    row[k] = winner(beyond(wanted, from, scratch, vocab) ? scratch : wanted, number, vocab);
                }
            } else {
                row[k] = winner(wanted, number, vocab);
            }
            if (drawn_from) std::memcpy(drawn_from + (b * (window + 1) + k) * vocab, wanted, vocab * sizeof(float));
        }
    }
    return 0;
}

// Write tokens behind each active row: the first accepted[b] nodes of `path` below the root (null: 1, 2, ...), and then
// `next` where there is one. `counts` [5, B] is the step's record, or null. Returns the least room for draft tokens.
int judging_keep(
    const int64_t* tokens, const bool* valid, const int64_t* path, const int64_t* accepted, const int64_t* next,
    const int64_t* skipped, const int64_t* stops, int64_t num_stops, const bool* active, const int64_t* lengths,
    int64_t rows, int64_t nodes, int64_t depth, int64_t most, int64_t* buffer, int64_t* stayed, int64_t* kept,
    int64_t* emitted, int64_t* new_lengths, int64_t* newest, bool* new_active, int64_t* counts
) {
    int64_t least = most;
    for (int64_t b = 0; b < rows; b++) {
        const int64_t all = active[b] ? accepted[b] : 0, wanted = all + (next && active[b]);
        bool stopped = false;
        int64_t written = 0;
        if (lengths[b] < 0 || lengths[b] + wanted > most || (path && all > depth)) return OUTSIDE;
        while (written < wanted && !stopped) {
            int64_t token;
            if (written < all) {  // the path ends with the last accepted node
                const int64_t node = path ? path[b * (depth + 1) + written + 1] : written + 1;
                if (node < 0 || node >= nodes) return OUTSIDE;
                token = tokens[b * nodes + node];
            } else {
                token = next[b];
            }
            buffer[b * (most + 1) + lengths[b] + written] = token;
            written++;
            for (int64_t s = 0; s < num_stops; s++) stopped |= token == stops[s];
        }
        stayed[b] = all, kept[b] = wanted, emitted[b] = written;
        new_lengths[b] = lengths[b] + written;
        new_active[b] = active[b] && !stopped && new_lengths[b] < most;
        newest[b] = new_lengths[b] > 0 ? buffer[b * (most + 1) + new_lengths[b] - 1] : 0;
        const int64_t room = new_active[b] ? most - 1 - new_lengths[b] : -1;
        least = room < least ? room : least;
        if (counts) {
            int64_t drafted = 0;
            for (int64_t i = 1; i < nodes; i++) drafted += valid[b * nodes + i];
            counts[b] = active[b], counts[rows + b] = drafted, counts[2 * rows + b] = all < written ? all : written;
            counts[3 * rows + b] = written, counts[4 * rows + b] = skipped[b];
        }
    }
    return (int)least;
}

// [B, n, n] which nodes are a node itself or its ancestors; parents stand before their children.
int judging_ancestors(const int64_t* parents, int64_t rows, int64_t nodes, bool* mask) {
    std::memset(mask, 0, rows * nodes * nodes);
    for (int64_t b = 0; b < rows; b++)
        for (int64_t i = 0; i < nodes; i++) {
            bool* here = mask + (b * nodes + i) * nodes;
            const int64_t parent = parents[b * nodes + i];
            if (parent >= i) return OUTSIDE;
            if (parent >= 0) std::memcpy(here, mask + (b * nodes + parent) * nodes, i);
            here[i] = true;
        }
    return 0;
}

// What the target is fed: pending tokens [B, m], of which row b has counts[b], and then a tree of n nodes.
int judging_join(
    const int64_t* pending, const int64_t* counts, const int64_t* tree_tokens, const int64_t* tree_depth,
    const bool* valid, const bool* tree_mask, int64_t rows, int64_t length, int64_t nodes, int64_t* tokens, bool* mask,
    int64_t* depths
) {
    const int64_t all = length + nodes;
    std::memset(mask, 0, rows * all * all);
    for (int64_t b = 0; b < rows; b++) {
        for (int64_t i = 0; i < all; i++) {
            const int64_t node = b * nodes + i - length, place = b * all + i;
            bool* here = mask + place * all;
            here[i] = true;
            if (i < length) {
                const bool counts_here = i < counts[b];
                tokens[place] = counts_here ? pending[b * length + i] : 0;
                depths[place] = counts_here ? i : 0;
                if (counts_here) std::memset(here, 1, i + 1);
            } else {
                tokens[place] = tree_tokens[node];
                depths[place] = tree_depth[node] + (valid[node] ? counts[b] : 0);
                if (valid[node]) std::memset(here, 1, counts[b]);
                std::memcpy(here + length, tree_mask + node * nodes, nodes);
            }
        }
    }
    return 0;
}

// The counts[b] entries of each row before entry ends[b]; those before the first are the first, those behind the last the
// last. Rows lie `of_row` bytes apart.
int judging_newest(
    const char* values, int64_t of_row, const int64_t* ends, const int64_t* counts, int64_t rows, int64_t width,
    int64_t bytes, char* entries
) {
    for (int64_t b = 0; b < rows; b++)
        for (int64_t i = 0; i < width; i++) {
            const int64_t last = ends[b] - 1, at = ends[b] - counts[b] + i, place = at < last ? at : last;
            std::memcpy(entries + (b * width + i) * bytes, values + b * of_row + (place > 0 ? place : 0) * bytes, bytes);
        }
    return 0;
}

// How many tokens of each row's path are taken unverified: the first that are alike [B, depth], up to most[b]; none where
// these are fewer than `min_count`, and in rows that have ended or have no more than `min_tokens`. Returns whether any are.
int judging_taken(
    const bool* alike, const int64_t* most, const int64_t* lengths, const bool* active, int64_t min_tokens,
    int64_t min_count, int64_t rows, int64_t depth, int64_t* counts
) {
    bool any = false;
    for (int64_t b = 0; b < rows; b++) {
        int64_t count = 0;
        while (count < depth && count < most[b] && alike[b * depth + count]) count++;
        counts[b] = count >= min_count && lengths[b] > min_tokens && active[b] ? count : 0;
        any |= counts[b] > 0;
    }
    return any;
}

// Write the first counts[b] of entries [B, k] to `store` [B, slots], from slot first[b] + lead on, and note the newest place.
int judging_store(
    const char* entries, const int64_t* first, const int64_t* counts, int64_t lead, int64_t rows, int64_t width,
    int64_t slots, int64_t bytes, char* store, int64_t* newest
) {
    for (int64_t b = 0; b < rows; b++) {
        if (counts[b] <= 0) continue;
        const int64_t last = first[b] + counts[b] - 1;
        if (counts[b] > width || first[b] + lead < 0 || last + lead >= slots) return OUTSIDE;
        std::memcpy(store + (b * slots + first[b] + lead) * bytes, entries + b * width * bytes, counts[b] * bytes);
        newest[b] = newest[b] < last ? last : newest[b];
    }
    return 0;
}

// In each plane of `entries` [planes, all_rows, slots], entry lengths[b] + nodes[b, j] becomes entry lengths[b] + j, for the
// first counts[b] of `nodes` [B, k], of the first B rows; `kept` has room for k entries. Then lengths grow by counts.
int judging_move(
    const int64_t* nodes, const int64_t* counts, int64_t planes, int64_t all_rows, int64_t rows, int64_t slots,
    int64_t width, int64_t bytes, char* kept, int64_t* lengths, char* entries
) {
    for (int64_t b = 0; b < rows; b++) {
        if (counts[b] > 0 && (lengths[b] < 0 || lengths[b] + counts[b] > slots)) return OUTSIDE;
        for (int64_t j = 0; j < counts[b]; j++)
            if (j >= width || nodes[b * width + j] < 0 || lengths[b] + nodes[b * width + j] >= slots) return OUTSIDE;
    }
    for (int64_t plane = 0; plane < planes; plane++)
        for (int64_t b = 0; b < rows; b++) {
            if (counts[b] <= 0) continue;
            char* here = entries + ((plane * all_rows + b) * slots + lengths[b]) * bytes;
            for (int64_t j = 0; j < counts[b]; j++)
                std::memcpy(kept + j * bytes, here + nodes[b * width + j] * bytes, bytes);
            std::memcpy(here, kept, counts[b] * bytes);
        }
    for (int64_t b = 0; b < rows; b++)
        if (counts[b] > 0) lengths[b] += counts[b];
    return 0;
}

// Where the newest tokens of each row, the last at `ends` [B], up to `most` of them, stood before in rows [B, width]: the
// latest of the longest places, and how many tokens match there; the place before the newest one, and 0, where none does.
int judging_occurrence(
    const int64_t* rows, const int64_t* ends, int64_t count, int64_t width, int64_t most, int64_t* places, int64_t* matched
) {
    for (int64_t b = 0; b < count; b++) {
        const int64_t* row = rows + b * width;
        const int64_t end = ends[b];
        if (end < 0 || end >= width) return OUTSIDE;
        places[b] = end - 1, matched[b] = 0;
        for (int64_t place = end - 1; place >= 0 && matched[b] < most; place--) {
            int64_t length = 0;
            while (length < most && length <= place && row[place - length] == row[end - length]) length++;
            if (length > matched[b]) places[b] = place, matched[b] = length;
        }
    }
    return 0;
}

}  // extern "C"
