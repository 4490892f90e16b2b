/* The recurrences of the LSTM, the GRU and the Elman network: all steps of one direction of one layer in one call,
   forward and backward. README.md has the way of the numbers through the caches.

   Rows are time-major: step t has the first sizes[t] sequences. The recurrent weights are packed once per call into
   panels; a panel gives the products of up to 4 vectors of outputs, for an LSTM the 4 gates of LANES units. Threads own
   (panel, rows) for the whole call and meet once per step. Each number is computed by one thread in one order, so
   nothing depends on how many there are. */

enum { LSTM, GRU, TANH, RELU };

typedef struct {
    int64_t cell, hidden, batch, steps, reverse;
    int64_t gates, masks; /* masks: 0, 1 (one for all gates) or `gates` */
    const int64_t *sizes;
    const float *mask, *cell_mask; /* (batch, masks, hidden), (batch, hidden) or null */
} Layer;

/* One thread's share of tasks; those of one panel follow each other. */
typedef struct {
    int64_t row_groups, first, end;
} Share;

INLINE Share share_of(int64_t panels, int64_t batch, int thread, int threads) {
    int64_t row_groups = (batch + ROWS - 1) / ROWS, tasks = panels * row_groups;
    return (Share){row_groups, tasks * thread / threads, tasks * (thread + 1) / threads};
}

INLINE int64_t first_row(const Layer *layer, const Share *share, int64_t group) {
    return group * layer->batch / share->row_groups;
}

/* Rows of `group` that step t has. */
INLINE int rows_of(const Layer *layer, const Share *share, int64_t group, int64_t n) {
    int64_t first = first_row(layer, share, group), end = first_row(layer, share, group + 1);
    return (int)(first >= n ? 0 : (end < n ? end : n) - first);
}

/* The panels of h -> h W^T. Gates of the same units lie together; the Elman network has neighbouring units. */
static void pack_forward(const Layer *layer, const float *w, float *packed, int thread, int threads) {
    const int64_t H = layer->hidden, G = layer->gates;
    const Cut c = cut(H);
    for (int64_t v = c.vectors * thread / threads; v < c.vectors * (thread + 1) / threads; v++) {
        int64_t lanes = H - v * LANES < LANES ? H - v * LANES : LANES;
        if (G > 1) {
            for (int64_t g = 0; g < G; g++)
                pack_rows(w + (g * H + v * LANES) * H, H, lanes, G, packed + (v * H * G + g) * LANES);
        } else {
            int64_t panel = 0;
            while (first_vector(c, panel + 1) <= v) panel++;
            int64_t first = first_vector(c, panel), nv = first_vector(c, panel + 1) - first;
            pack_rows(w + v * LANES * H, H, lanes, nv, packed + (first * H + v - first) * LANES);
        }
    }
}

/* The panels of d -> d W. */
static void pack_backward(const Layer *layer, const float *w, float *packed, int thread, int threads) {
    const int64_t H = layer->hidden, depth = layer->gates * H;
    const Cut c = cut(H);
    for (int64_t panel = c.panels * thread / threads; panel < c.panels * (thread + 1) / threads; panel++) {
        int64_t first = first_vector(c, panel), nv = first_vector(c, panel + 1) - first;
        float *to = packed + first * depth * LANES;
        for (int64_t k = 0; k < depth; k++)
            for (int64_t v = 0; v < nv; v++) {
                int64_t u = (first + v) * LANES;
                store(to + (k * nv + v) * LANES, load_some(w + k * H + u, H - u));
            }
    }
}

/* Where step number s of the visit lies: its t, first row and number of rows. */
typedef struct {
    int64_t t, row, n;
} Step;

static Step step_at(const Layer *layer, const int64_t *offsets, int64_t s) {
    int64_t t = layer->reverse ? layer->steps - 1 - s : s;
    return (Step){t, offsets[t], layer->sizes[t]};
}

/* The state (batch, H) before step s of the visit, seen by one sequence: the row of `states`, or the initial one. */
INLINE const float *state_before(const Layer *layer, const int64_t *offsets, int64_t s, const float *states,
                                 const float *initial, int64_t sequence) {
    if (s > 0) {
        Step before = step_at(layer, offsets, s - 1);
        if (sequence < before.n) return states + (before.row + sequence) * layer->hidden;
    }
    return initial + sequence * layer->hidden;
}

/* ---- forward ---- */

typedef struct {
    float *gx;                /* (N, gates * H): in the input part of the gates, out their activations */
    const float *w, *bias;    /* bias: b_hn of the GRU, or null */
    float *out, *kept;        /* (N, H); kept: the LSTM's cells, the GRU's inner product; null: not wanted */
    float *h, *c;             /* (batch, H): in the initial state, out the last */
    float *packed, *masked;   /* scratch: the panels; two sets of masked h, (masks or 1, batch, H) each */
} Forward;

/* Writes h of one sequence where the next step's product reads it, once for each mask. */
INLINE void put_masked(const Layer *layer, float *masked, int64_t sequence, int64_t u, vf h, int64_t lanes) {
    const int64_t H = layer->hidden, copies = layer->masks ? layer->masks : 1;
    for (int64_t g = 0; g < copies; g++) {
        vf x = layer->mask ? h * load_some(layer->mask + (sequence * copies + g) * H + u, lanes) : h;
        store_some(masked + (g * layer->batch + sequence) * H + u, x, lanes);
    }
}

/* After the product: the activations of all rows first, since they are many and independent, then the states. */
INLINE void finish_lstm(const Layer *layer, const Forward *f, Step at, int64_t start, int rows, int64_t u,
                        int64_t lanes, float *sums, float *next) {
    const int64_t H = layer->hidden;
    for (int r = 0; r < rows; r++) {
        float *gates = f->gx + (at.row + start + r) * 4 * H + u, *a = sums + r * MOST * LANES;
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) {
            vf x = load_some(gates + g * H, lanes) + load(a + g * LANES);
            x = g == 2 ? hyperbolic(x) : sigmoid(x);
            store(a + g * LANES, x);
            store_some(gates + g * H, x, lanes);
        }
    }
    for (int r = 0; r < rows; r++) {
        const float *a = sums + r * MOST * LANES;
        int64_t sequence = start + r, row = at.row + sequence, own = sequence * H + u;
        vf c = load(a + LANES) * load_some(f->c + own, lanes) + load(a) * load(a + 2 * LANES);
        if (layer->cell_mask) c *= load_some(layer->cell_mask + own, lanes);
        vf h = load(a + 3 * LANES) * hyperbolic(c);
        if (f->kept) store_some(f->kept + row * H + u, c, lanes);
        store_some(f->c + own, c, lanes);
        store_some(f->out + row * H + u, h, lanes);
        store_some(f->h + own, h, lanes);
        put_masked(layer, next, sequence, u, h, lanes);
    }
}

INLINE void finish_gru(const Layer *layer, const Forward *f, int64_t row, int64_t sequence, int64_t u, int64_t lanes,
                       const float *sums, float *masked) {
    const int64_t H = layer->hidden, at = sequence * H + u;
    float *gates = f->gx + row * 3 * H + u;
    vf reset = sigmoid(load_some(gates, lanes) + load(sums));
    vf update = sigmoid(load_some(gates + H, lanes) + load(sums + LANES));
    vf inner = load(sums + 2 * LANES);
    if (f->bias) inner += load_some(f->bias + u, lanes);
    vf new = hyperbolic(load_some(gates + 2 * H, lanes) + reset * inner);
    vf h = new + update * (load_some(f->h + at, lanes) - new);
    store_some(gates, reset, lanes);
    store_some(gates + H, update, lanes);
    store_some(gates + 2 * H, new, lanes);
    if (f->kept) store_some(f->kept + row * H + u, inner, lanes);
    store_some(f->out + row * H + u, h, lanes);
    store_some(f->h + at, h, lanes);
    put_masked(layer, masked, sequence, u, h, lanes);
}

INLINE void finish_elman(const Layer *layer, const Forward *f, int64_t row, int64_t sequence, int64_t u, int64_t lanes,
                         const float *sums, float *masked) {
    const int64_t H = layer->hidden;
    vf a = load_some(f->gx + row * H + u, lanes) + load(sums);
    vf h = layer->cell == TANH ? hyperbolic(a) : larger(all(0.0f), a);
    store_some(f->gx + row * H + u, h, lanes); /* for the backward: the caller may change `out` */
    store_some(f->out + row * H + u, h, lanes);
    store_some(f->h + sequence * H + u, h, lanes);
    put_masked(layer, masked, sequence, u, h, lanes);
}

static void forward_task(const Layer *layer, const Forward *f, const Share *share, Step at, int64_t task,
                         const float *masked, float *next) {
    const int64_t H = layer->hidden, G = layer->gates, group = task % share->row_groups;
    const Cut c = cut(H);
    int64_t panel = task / share->row_groups, first = G > 1 ? panel : first_vector(c, panel);
    int64_t nv = G > 1 ? G : first_vector(c, panel + 1) - first, start = first_row(layer, share, group);
    const int rows = rows_of(layer, share, group, at.n), own = layer->masks > 1;
    float sums[ROWS * MOST * LANES] __attribute__((aligned(64)));
    if (!rows) return;
    for (int r = 0; r < rows; r++) { /* what comes after the product, while it runs */
        int64_t row = at.row + start + r, u = first * LANES;
        for (int64_t v = 0; v < nv; v++) __builtin_prefetch(f->gx + row * G * H + (G > 1 ? v * H : v * LANES) + u, 1);
        __builtin_prefetch(f->out + row * H + u, 1);
        if (f->kept) __builtin_prefetch(f->kept + row * H + u, 1);
    }
    TILES[rows - 1][own][nv - 1](f->packed + first * (G > 1 ? G : 1) * H * LANES, masked + start * H, H,
                                 layer->batch * H, H, sums);
    const int64_t u = first * LANES, left = H - u;
    if (layer->cell == LSTM) {
        if (left >= LANES) finish_lstm(layer, f, at, start, rows, u, LANES, sums, next);
        else finish_lstm(layer, f, at, start, rows, u, left, sums, next);
        return;
    }
    for (int r = 0; r < rows; r++) {
        const float *own_sums = sums + r * MOST * LANES;
        int64_t sequence = start + r, row = at.row + sequence;
        if (layer->cell == GRU) {
            if (left >= LANES) finish_gru(layer, f, row, sequence, u, LANES, own_sums, next);
            else finish_gru(layer, f, row, sequence, u, left, own_sums, next);
        } else {
            for (int64_t v = 0; v < nv; v++)
                finish_elman(layer, f, row, sequence, u + v * LANES, left - v * LANES, own_sums + v * LANES, next);
        }
    }
}

/* The part of one of `count` threads, which all run this together. */
static void forward_part(const Layer *layer, const Forward *f, const int64_t *offsets, int thread, int count) {
    const int64_t H = layer->hidden, copies = layer->masks ? layer->masks : 1, set = copies * layer->batch * H;
    const Cut c = cut(H);
    const Share share = share_of(layer->gates > 1 ? c.vectors : c.panels, layer->batch, thread, count);
    pack_forward(layer, f->w, f->packed, thread, count);
    for (int64_t b = layer->batch * thread / count; b < layer->batch * (thread + 1) / count; b++)
        for (int64_t u = 0; u < H; u += LANES) { /* in both sets: sequences that begin later find it there */
            vf h = load_some(f->h + b * H + u, H - u);
            put_masked(layer, f->masked, b, u, h, H - u);
            put_masked(layer, f->masked + set, b, u, h, H - u);
        }
    for (int64_t s = 0; s < layer->steps; s++) {
        Step at = step_at(layer, offsets, s);
        if (count > 1) {
#pragma omp barrier
        }
        for (int64_t task = share.first; task < share.end; task++)
            forward_task(layer, f, &share, at, task, f->masked + (s % 2) * set, f->masked + ((s + 1) % 2) * set);
    }
}

void bayesrnn_recurrence(const Layer *layer, const Forward *f, const int64_t *offsets, int threads) {
#pragma omp parallel num_threads(threads)
    forward_part(layer, f, offsets, THREAD, THREADS);
}

/* Several draws of the weights, each with its own gx, w, bias, states and output one after the other in memory; every
   draw is one thread's. The scratch is that of all threads; nothing is kept for a backward pass. */
void bayesrnn_recurrence_many(const Layer *layer, const Forward *f, const int64_t *offsets, int64_t draws, int threads) {
    const int64_t H = layer->hidden, G = layer->gates, N = offsets[layer->steps], state = layer->batch * H;
    const int64_t packed = G * H * cut(H).vectors * LANES;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t d = 0; d < draws; d++) {
        const Forward own = {
            f->gx + d * N * G * H, f->w + d * G * H * H, f->bias ? f->bias + d * H : 0, f->out + d * N * H, 0,
            f->h + d * state, f->c ? f->c + d * state : 0, f->packed + THREAD * packed, f->masked + THREAD * 2 * state};
        forward_part(layer, &own, offsets, 0, 1);
    }
}

/* ---- backward ---- */

typedef struct {
    const float *gates, *out, *kept, *h0, *c0, *w; /* as they were or became in the forward pass */
    const float *d_out;       /* (N, H) or null */
    float *dh, *dc;           /* (batch, H): in the gradients of the last states, out those of the first */
    float *d_gx;              /* (N, gates * H): gradient of gx */
    float *d_product;         /* (N, gates * H): gradient of the recurrent product; the same memory but for the GRU */
    float *packed;            /* scratch */
} Backward;

INLINE void lstm_gradient(const Layer *layer, const Backward *b, const int64_t *offsets, int64_t s, int64_t row,
                          int64_t sequence, int64_t u, int64_t lanes) {
    const int64_t H = layer->hidden, at = sequence * H + u;
    const float *gates = b->gates + row * 4 * H + u;
    const float *before = state_before(layer, offsets, s, b->kept, b->c0, sequence) + u;
    float *d = b->d_gx + row * 4 * H + u;
    vf i = load_some(gates, lanes), forget = load_some(gates + H, lanes);
    vf g = load_some(gates + 2 * H, lanes), o = load_some(gates + 3 * H, lanes);
    vf squashed = hyperbolic(load_some(b->kept + row * H + u, lanes));
    vf dh = load_some(b->dh + at, lanes);
    if (b->d_out) dh += load_some(b->d_out + row * H + u, lanes);
    vf dc = load_some(b->dc + at, lanes) + dh * o * (1.0f - squashed * squashed);
    if (layer->cell_mask) dc *= load_some(layer->cell_mask + at, lanes);
    store_some(d, dc * g * (i - i * i), lanes);
    store_some(d + H, dc * load_some(before, lanes) * (forget - forget * forget), lanes);
    store_some(d + 2 * H, dc * i * (1.0f - g * g), lanes);
    store_some(d + 3 * H, dh * squashed * (o - o * o), lanes);
    store_some(b->dc + at, dc * forget, lanes);
    store_some(b->dh + at, (vf){0}, lanes); /* the product is added to it */
}

/* `out` has the state before each row. */
INLINE void gru_gradient(const Layer *layer, const Backward *b, int64_t row, int64_t sequence, int64_t u,
                         int64_t lanes) {
    const int64_t H = layer->hidden, at = sequence * H + u;
    const float *gates = b->gates + row * 3 * H + u;
    const float *before = b->out + row * H + u;
    float *d = b->d_gx + row * 3 * H + u, *p = b->d_product + row * 3 * H + u;
    vf reset = load_some(gates, lanes), update = load_some(gates + H, lanes), new = load_some(gates + 2 * H, lanes);
    vf dh = load_some(b->dh + at, lanes);
    if (b->d_out) dh += load_some(b->d_out + row * H + u, lanes);
    vf d_new = dh * (1.0f - update) * (1.0f - new * new), d_inner = d_new * reset;
    vf d_reset = d_inner * load_some(b->kept + row * H + u, lanes) * (1.0f - reset);
    vf d_update = dh * (load_some(before, lanes) - new) * (update - update * update);
    store_some(d, d_reset, lanes);
    store_some(d + H, d_update, lanes);
    store_some(d + 2 * H, d_new, lanes);
    store_some(p, d_reset, lanes);
    store_some(p + H, d_update, lanes);
    store_some(p + 2 * H, d_inner, lanes);
    store_some(b->dh + at, dh * update, lanes);
}

INLINE void elman_gradient(const Layer *layer, const Backward *b, int64_t row, int64_t sequence, int64_t u,
                           int64_t lanes) {
    const int64_t H = layer->hidden, at = sequence * H + u;
    vf h = load_some(b->out + row * H + u, lanes), dh = load_some(b->dh + at, lanes);
    if (b->d_out) dh += load_some(b->d_out + row * H + u, lanes);
    vf d = layer->cell == TANH ? dh * (1.0f - h * h) : where(h > 0.0f, dh, (vf){0});
    store_some(b->d_gx + row * H + u, d, lanes);
    store_some(b->dh + at, (vf){0}, lanes);
}

/* What a step does before its product, for the units and rows of one task. */
static void gradient_task(const Layer *layer, const Backward *b, const Share *share, const int64_t *offsets, int64_t s,
                          Step at, int64_t task) {
    const Cut c = cut(layer->hidden);
    int64_t panel = task / share->row_groups, group = task % share->row_groups, start = first_row(layer, share, group);
    const int rows = rows_of(layer, share, group, at.n);
    for (int r = 0; r < rows; r++)
        for (int64_t v = first_vector(c, panel); v < first_vector(c, panel + 1); v++) {
            int64_t sequence = start + r, row = at.row + sequence, u = v * LANES, left = layer->hidden - u;
            if (layer->cell == LSTM) {
                if (left >= LANES) lstm_gradient(layer, b, offsets, s, row, sequence, u, LANES);
                else lstm_gradient(layer, b, offsets, s, row, sequence, u, left);
            } else if (layer->cell == GRU) {
                gru_gradient(layer, b, row, sequence, u, left);
            } else {
                elman_gradient(layer, b, row, sequence, u, left);
            }
        }
}

/* dh += mask * (d W) for the units and rows of one task, gate by gate: the part of a panel that a gate needs stays in
   the cache while the rows pass, and each gate can have its own mask. */
static void product_tasks(const Layer *layer, const Backward *b, const Share *share, Step at, int64_t first_task,
                          int64_t end_task) {
    const int64_t H = layer->hidden, depth = layer->gates * H, panel = first_task / share->row_groups;
    const Cut c = cut(H);
    const int64_t first = first_vector(c, panel), nv = first_vector(c, panel + 1) - first;
    float sums[ROWS * MOST * LANES] __attribute__((aligned(64)));
    for (int64_t g = 0; g < layer->gates; g++)
        for (int64_t task = first_task; task < end_task; task++) {
            int64_t group = task % share->row_groups, start = first_row(layer, share, group);
            const int rows = rows_of(layer, share, group, at.n);
            if (!rows) continue;
            TILES[rows - 1][0][nv - 1](b->packed + (first * depth + g * H * nv) * LANES,
                                       b->d_product + (at.row + start) * depth + g * H, depth, 0, H, sums);
            for (int r = 0; r < rows; r++)
                for (int64_t v = 0; v < nv; v++) {
                    int64_t u = (first + v) * LANES, left = H - u, sequence = start + r;
                    vf x = load(sums + (r * MOST + v) * LANES);
                    if (layer->mask) {
                        int64_t which = layer->masks > 1 ? g : 0;
                        x *= load_some(layer->mask + (sequence * layer->masks + which) * H + u, left);
                    }
                    float *to = b->dh + sequence * H + u;
                    store_some(to, load_some(to, left) + x, left);
                }
        }
}

void bayesrnn_recurrence_backward(const Layer *layer, const Backward *b, const int64_t *offsets, int threads) {
    const Cut c = cut(layer->hidden);
#pragma omp parallel num_threads(threads)
    {
        const int thread = THREAD, count = THREADS;
        const Share share = share_of(c.panels, layer->batch, thread, count);
        pack_backward(layer, b->w, b->packed, thread, count);
        for (int64_t s = layer->steps - 1; s >= 0; s--) {
            Step at = step_at(layer, offsets, s);
            for (int64_t task = share.first; task < share.end; task++)
                gradient_task(layer, b, &share, offsets, s, at, task);
#pragma omp barrier
            for (int64_t task = share.first; task < share.end;) {
                int64_t end = (task / share.row_groups + 1) * share.row_groups;
                if (end > share.end) end = share.end;
                product_tasks(layer, b, &share, at, task, end);
                task = end;
            }
        }
    }
}
