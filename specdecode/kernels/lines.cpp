// Row windows: what a pass feeds, and what follows from its draws. See `row_windows.py` for the rule.
//
// Belongs here: loops over rows, lines and places on plain pointers. Does not belong here: torch, which calls these when
// (`fused_ops.py`), and draws. All numbers are integers, so results are those of the torch lines that a call replaces.
//
// A cell is a column of a line; [B, R, S] is by row, line and column. Places are [B, N]; slots [B, W] are those of places
// and then of placeholders, the first of which is line 1's. All arguments are int64 or addresses.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

enum Origin : int8_t { TARGET = 0, ACCEPTED = 1, UNVERIFIED = 3 };  // of `trace.TokenOrigin`

constexpr int OUTSIDE = -2;  // a pass that feeds more tokens than there is room for

// Tensors that a run keeps from step to step, in the order of `judging.RowWindowState`.
struct Kept {
    const int64_t* geometry;  // [1 or B, 4], of each row: tokens of a line, lines, places from line to line, places
    int64_t geometries;
    int64_t* counts;  // [B, R], decided tokens
    int64_t* guesses;  // [B, R], behind them
    bool* fed;  // [B, R, S], places whose decided tokens were fed
    int64_t* visits;  // [B, R, S], passes that have drawn each place
    const int64_t* windows;  // [B, R], decided tokens of the line before when a line opens
    const int64_t* guessable;  // [B], so many first tokens of a line may be guesses
    const bool* active;  // [B]
    int64_t* buffer;  // [B, N + 1], tokens
    int64_t rows, lines, stride, places;
};

// One row of the batch.
struct Row {
    int64_t length, height, stride, own_places, guessable;
    int64_t *counts, *guesses, *visits, *buffer;
    bool* fed;
    const int64_t* windows;
    bool active;
    int64_t lines, columns;

    Row(const Kept& all, int64_t b) {
        const int64_t* own = all.geometry + (all.geometries > 1 ? b : 0) * 4;
        length = own[0], height = own[1], stride = own[2], own_places = own[3];
        counts = all.counts + b * all.lines, guesses = all.guesses + b * all.lines, windows = all.windows + b * all.lines;
        fed = all.fed + b * all.lines * all.stride, visits = all.visits + b * all.lines * all.stride;
        buffer = all.buffer + b * (all.places + 1);
        active = all.active[b], guessable = all.guessable[b];
        lines = all.lines, columns = all.stride;
    }
    // Whether a cell is a place of this row.
    bool has(int64_t line, int64_t column) const { return column < stride && line * stride + column < own_places; }
    int64_t ahead(int64_t line) const { return line ? counts[line - 1] : length; }
    bool opened(int64_t line) const { return active && counts[line] < length && ahead(line) >= windows[line]; }
    bool begins(int64_t line) const { return opened(line) && counts[line] == 0; }
    bool waits(int64_t line) const { return begins(line) && ahead(line) < length; }
    bool is_guess(int64_t line, int64_t column) const {
        return column >= counts[line] && column < counts[line] + guesses[line];
    }
    bool is_drawn(int64_t line, int64_t column) const {
        return opened(line) && column >= counts[line] && column <= counts[line] + guesses[line];
    }
    bool feeds(int64_t line, int64_t column) const {
        if (!active || !has(line, column) || line * stride + column >= own_places - 1) return false;
        if (column < counts[line] ? !fed[line * columns + column] : is_guess(line, column)) return true;
        // The end-of-row token before a line that begins, or the last token of the line before; perhaps once more.
        const bool is_end = column == stride - 1 && line < height - 1;
        return is_end && line + 1 < lines && begins(line + 1) && (stride > length || !waits(line + 1));
    }
    // Whether a place is decided; an end-of-row token is with the first token behind it.
    bool is_decided(int64_t line, int64_t column) const {
        if (!has(line, column)) return false;
        const bool is_row_end = stride > length && column == stride - 1 && line < height - 1;
        return column < counts[line] || (is_row_end && line + 1 < lines && counts[line + 1] > 0);
    }
    // Calls with the place of every cell that is one.
    template <typename Visit>
    void each(Visit visit) const {
        for (int64_t line = 0; line < lines; line++)
            for (int64_t column = 0; column < columns; column++)
                if (has(line, column)) visit(line, column, line * stride + column);
    }
};

}  // namespace

extern "C" {

// What the pass feeds: slots, places and tokens [B, n], which of them are real, and which slots each sees [B, n, W]. A row
// with fewer repeats its first. Returns n, or OUTSIDE where it is more than `most`.
int judging_plan_lines(
    const int64_t* geometry, int64_t geometries, int64_t* counts, int64_t* guesses, bool* fed, int64_t* visits,
    const int64_t* windows, const int64_t* guessable, const bool* active, int64_t* buffer, int64_t rows, int64_t lines,
    int64_t stride, int64_t places, int64_t placeholders, int64_t most, int64_t* slots, int64_t* positions, int64_t* tokens,
    bool* real, bool* visible
) {
    const Kept all = {geometry, geometries, counts, guesses, fed, visits, windows, guessable, active, buffer,
                      rows, lines, stride, places};
    const int64_t width = places + placeholders;
    std::vector<std::vector<int64_t>> feeding(rows);
    int64_t n = 1;
    for (int64_t b = 0; b < rows; b++) {
        const Row row(all, b);
        row.each([&](int64_t line, int64_t column, int64_t place) {
            if (row.feeds(line, column)) feeding[b].push_back(place);
        });
        for (int64_t i = 0; i < placeholders; i++)
            if (row.waits(i + 1)) feeding[b].push_back(places + i);
        n = std::max<int64_t>(n, feeding[b].size());
    }
    if (n > most) return OUTSIDE;
    std::memset(visible, 0, rows * n * width);
    std::vector<char> shared(places), guessed(places);
    for (int64_t b = 0; b < rows; b++) {
        const Row row(all, b);
        std::fill(shared.begin(), shared.end(), 0), std::fill(guessed.begin(), guessed.end(), 0);
        row.each([&](int64_t line, int64_t column, int64_t place) {
            guessed[place] = row.is_guess(line, column);
            shared[place] = row.fed[line * row.columns + column] || (!guessed[place] && row.feeds(line, column));
        });
        const auto place_before = [&](int64_t line) { return std::min(line * row.stride - 1, places - 1); };
        const int64_t own = feeding[b].size();
        for (int64_t i = 0; i < n; i++) {
            const int64_t slot = i < own ? feeding[b][i] : own ? feeding[b][0] : 0, at = b * n + i;
            const int64_t line = slot < places ? slot / row.stride : slot - places + 1;
            const int64_t position = slot < places ? slot : place_before(line);
            int64_t source = slot;
            if (slot >= places) {  // the newest token of the line two before; of the first for the second
                const int64_t copied = std::max<int64_t>(line - 2, 0);
                source = std::min(copied * row.stride - 1 + row.counts[copied], places);
            }
            slots[at] = slot, positions[at] = position, tokens[at] = row.buffer[source], real[at] = i < own;
            bool* sees = visible + at * width;
            for (int64_t place = 0; place <= position; place++)
                sees[place] = shared[place] || (guessed[place] && place / row.stride == line);
            if (line >= 1 && line <= placeholders) sees[places + line - 1] = !shared[place_before(line)];
        }
    }
    return n;
}

// What follows from the tokens `drawn` [B, n] behind those that a pass has fed: counts, guesses, what was fed and drawn,
// and tokens of a run change in place. `rule`: guesses; whether a first token must be confirmed; the most visits or 0; whether
// lines open with the tokens of the lines before.
//
// Made: the counts of the step's record but the first [4, B], and tokens fed [B]; by place [B, N] where an added token is
// from, -1 elsewhere; [B, N] which places are decided; lengths [B]; which rows go on [B]; and `m` places to guess at, [B, m],
// the number of the fed token whose distribution each is drawn from, and which of them are real. Returns m.
int judging_judge_lines(
    const int64_t* geometry, int64_t geometries, int64_t* counts, int64_t* guesses, bool* fed, int64_t* visits,
    const int64_t* windows, const int64_t* guessable, const bool* active, int64_t* buffer, int64_t rows, int64_t lines,
    int64_t stride, int64_t places, int64_t placeholders, const int64_t* rule, const int64_t* ends, const int64_t* slots,
    const int64_t* positions, const bool* real, const int64_t* drawn, int64_t n, int64_t most, int64_t* record, int64_t* num_fed, int8_t* by_place,
    bool* decided, int64_t* lengths, bool* going_on, int64_t* guessed_at, int64_t* guessed_from, bool* is_guessed
) {
    const Kept all = {geometry, geometries, counts, guesses, fed, visits, windows, guessable, active, buffer,
                      rows, lines, stride, places};
    const int64_t most_guesses = rule[0], confirm_first = rule[1], max_visits = rule[2], start_from_row_above = rule[3];
    std::vector<int64_t> laid(places + 1), right(lines), verified(lines), after(lines), wanted(lines), from(lines);
    std::vector<char> opened(lines), waits(lines), opening(lines);
    std::vector<std::vector<std::pair<int64_t, int64_t>>> next(rows);  // places and fed tokens
    std::memset(by_place, -1, rows * places);
    int64_t m = 0;
    for (int64_t b = 0; b < rows; b++) {
        const Row row(all, b);
        int64_t fed_here = 0;
        std::fill(laid.begin(), laid.end(), 0);
        for (int64_t i = 0; i < n; i++)
            if (real[b * n + i]) laid[positions[b * n + i] + 1] = drawn[b * n + i], fed_here++;
        int64_t drafted = 0, accepted = 0, emitted = 0, skipped = 0;
        for (int64_t line = 0; line < lines; line++) {
            opened[line] = row.opened(line), waits[line] = row.waits(line);
            const int64_t before = row.counts[line], first = line * row.stride;
            const auto match = [&](int64_t column) {
                return row.is_guess(line, column) && row.has(line, column) &&
                       row.buffer[first + column] == laid[first + column];
            };
            for (int64_t column = before; column < row.columns && row.is_guess(line, column); column++) drafted++;
            int64_t reach = std::min(before, row.columns);
            while (reach < row.columns && match(reach)) reach++;
            right[line] = reach;
            int64_t count = opened[line] ? reach + 1 : before;
            if (confirm_first && waits[line] && reach == 0) count = 0;
            verified[line] = count;
            if (max_visits) {
                for (int64_t column = 0; column < row.columns; column++)
                    row.visits[line * row.columns + column] += row.is_drawn(line, column);
                while (count < row.columns && row.is_drawn(line, count) &&
                       row.visits[line * row.columns + count] >= max_visits)
                    count++;
            }
            after[line] = count;
            if (opened[line]) accepted += reach - before;
            emitted += verified[line] - before, skipped += count - verified[line];
        }
        // What was fed, by the state before. What was taken unverified has a newest token, too, drawn behind next.
        std::vector<char> was_decided(places);
        std::vector<int64_t> now_fed;
        row.each([&](int64_t line, int64_t column, int64_t place) {
            was_decided[place] = row.is_decided(line, column);
            if (!row.feeds(line, column)) return;
            const bool holds = row.buffer[place] == laid[place] && column < after[line] - 1;
            if (!row.is_guess(line, column) || holds) now_fed.push_back(line * row.columns + column);
        });
        row.each([&](int64_t line, int64_t column, int64_t place) {
            if (row.is_drawn(line, column)) row.buffer[place] = laid[place];
        });
        for (const int64_t cell : now_fed) row.fed[cell] = true;
        // The first column that an open line did not draw.
        for (int64_t line = 0; line < lines; line++)
            from[line] = std::min(row.counts[line] + row.guesses[line] + 1, row.columns);
        int64_t new_tokens = 0;
        for (int64_t line = 0; line < lines; line++) new_tokens += after[line] - row.counts[line];
        std::copy(after.begin(), after.end(), row.counts);
        int64_t added = 0, length = 0;
        std::memset(decided + b * places, 0, places);
        row.each([&](int64_t line, int64_t column, int64_t place) {
            const bool is_now = row.is_decided(line, column);
            decided[b * places + place] = is_now;
            if (is_now && !was_decided[place]) {
                added++;
                by_place[b * places + place] =
                    column < right[line] ? ACCEPTED : column < verified[line] || column >= after[line] ? TARGET : UNVERIFIED;
            }
        });
        while (length < places && decided[b * places + length]) length++;
        emitted += added - new_tokens;  // end-of-row tokens
        record[b] = drafted, record[rows + b] = accepted, record[2 * rows + b] = emitted;
        record[3 * rows + b] = skipped, num_fed[b] = row.active ? fed_here : 0;
        lengths[b] = length, going_on[b] = row.active && length < ends[b];

        for (int64_t line = 0; line < lines; line++) {
            const int64_t count = after[line], ahead = row.ahead(line);
            const int64_t room = ahead == row.length ? row.length : ahead - count;
            const int64_t most_here = count == 0 ? std::max(most_guesses, confirm_first) : most_guesses;
            wanted[line] = std::max<int64_t>(std::min({most_here, room, row.guessable - count}), 0);
            opening[line] = start_from_row_above && line && ahead >= row.windows[line] && !opened[line] && count == 0;
            row.guesses[line] = opened[line] || opening[line] ? wanted[line] : 0;
        }
        // From the last line up, so that a line is copied before it is written to.
        for (int64_t line = lines - 1; line > 0; line--)
            for (int64_t column = 0; opening[line] && column < row.columns; column++)
                if (row.has(line, column)) row.buffer[line * row.stride + column] = row.buffer[(line - 1) * row.stride + column];
        for (int64_t line = 0; line < lines; line++) {
            if (!opened[line]) continue;
            const bool by_placeholder = row.stride == row.length && waits[line] && from[line] == 1;
            const int64_t slot = by_placeholder ? places + line - 1 : line * row.stride + from[line] - 2;
            int64_t node = 0;
            for (int64_t i = n - 1; i >= 0; i--)
                if (slots[b * n + i] == slot) node = i;
            for (int64_t column = from[line]; column < after[line] + wanted[line]; column++)
                if (row.has(line, column)) next[b].push_back({line * row.stride + column, node});
        }
        m = std::max<int64_t>(m, next[b].size());
    }
    if (m > most) return OUTSIDE;
    for (int64_t b = 0; b < rows; b++)
        for (int64_t i = 0; i < m; i++) {
            const int64_t own = next[b].size(), at = b * m + i;
            const auto [place, node] = i < own ? next[b][i] : own ? next[b][0] : std::pair<int64_t, int64_t>(0, 0);
            guessed_at[at] = place, guessed_from[at] = node, is_guessed[at] = i < own;
        }
    return (int)m;
}

}  // extern "C"
