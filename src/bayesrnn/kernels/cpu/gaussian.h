/* Gaussian weights: theta = mean + softplus(rho) eps for all tensors of a posterior in one pass, with the KL; the
   backward in one more. The noise is never stored: both passes make it from the seed and the weight's place.

   Work is cut into blocks whose borders depend on the shapes alone, and sums are added up in the order of the blocks:
   no number depends on how many threads there are. README.md has the equations. */

#include <math.h>

#define TILE 1024 /* weights worked on while they are in the first cache */

enum { WHOLE, BY_ROW, BY_COLUMN };       /* what a group of the prior is */
enum { NONE, NORMAL, GROUPS, WEIGHTS };  /* the prior */

typedef struct {
    int64_t numel, row, columns, rest; /* row: weights of one index of axis 0; rest: of one index of axes 0 and 1 */
    int64_t kind, groups, first_group, group_size;
    int64_t padding, padding_end;      /* flat places that have no noise */
    int64_t block, first_block, blocks;
    int64_t first_partial;             /* of the sums of single blocks, in `partials` */
} Shape;

typedef struct {
    int64_t kind, sums;
    double wide, narrow, offset;                           /* of WEIGHTS; `wide` of NORMAL too */
    double log_pi[2], log_sigma[2], half[2], constant;     /* of GROUPS */
} Prior;

/* Noise of the weights start .. start + n, n <= TILE; start is a multiple of GROUP, `out` has room for whole groups. */
static void normal_tile(float *out, uint64_t seed, uint32_t tensor, const Shape *shape, int64_t start, int64_t n) {
    for (int64_t j = 0; j < n; j += GROUP) normal_group(out + j, seed, tensor, (uint64_t)(start + j) / GROUP);
    int64_t low = shape->padding - start, high = shape->padding_end - start;
    if (low < 0) low = 0;
    if (high > n) high = n;
    if (low < high) memset(out + low, 0, (size_t)(high - low) * sizeof(float));
}

/* sigma = log(1 + e^rho); a with log sigma = log a + min(rho, 0), exact where sigma underflows; e = exp(-|rho|). */
INLINE vf softplus(vf rho, vf *a, vf *e) {
    *e = exponential(larger(all(-87.0f), -magnitude(rho)));
    vf ratio = log1p_ratio(*e);
    vf sigma = larger(all(0.0f), rho) + *e * ratio;
    *a = where(rho < 0.0f, ratio, sigma);
    return sigma;
}

/* -log p of one weight under the mixture without its constant, and f with d(-log p) / d theta = f theta. */
INLINE vf mixture(const Prior *prior, vf square, vf *factor) {
    const float wide = (float)prior->wide, narrow = (float)prior->narrow;
    vf d = square * (0.5f * (wide - narrow)) + (float)prior->offset;
    vf e = exponential(larger(all(-87.0f), -magnitude(d)));
    *factor = wide + (narrow - wide) * where(d < 0.0f, e, all(1.0f)) * inverse(1.0f + e);
    return square * (0.5f * wide) - (larger(all(0.0f), d) + e * log1p_ratio(e));
}

/* Sums over one tile, in lanes. */
typedef struct {
    vf term, low, mantissas;
    vi exponents;
} Sums;

/* One vector of weights: theta, and its part of the KL; lanes where `inside` is 0 count for nothing. */
INLINE vf draw_vector(const Prior *prior, const int kind, const int sums, vf mean, vf rho, vf eps, vi inside, Sums *s) {
    vf a, e, sigma = softplus(rho, &a, &e), theta = mean + sigma * eps, term;
    if (!sums) return theta;
    if (kind == NORMAL)
        term = (sigma * sigma + mean * mean) * (0.5f * (float)prior->wide);
    else
        term = eps * eps * -0.5f;
    if (kind == WEIGHTS) {
        vf factor;
        term += mixture(prior, theta * theta, &factor);
    }
    s->term += (vf)(inside & bits(term));
    s->low += (vf)(inside & bits(smaller(all(0.0f), rho)));
    vi number = bits(where(inside, a, all(1.0f)));
    s->exponents += (number >> 23) - 127;
    s->mantissas *= (vf)((number & 0x7fffff) | 0x3f800000);
    return theta;
}

/* Moves the exponent of the product of mantissas, which grows by up to 1 with every vector, to the sum of exponents. */
INLINE void settle(Sums *s) {
    vi number = bits(s->mantissas);
    s->exponents += (number >> 23) - 127;
    s->mantissas = (vf)((number & 0x7fffff) | 0x3f800000);
}

INLINE double sum_of(const Sums *s) {
    double exponents = total(__builtin_convertvector(s->exponents, vf));
    return total(s->term) - total(s->low) - total(logarithm(s->mantissas)) - exponents * 0.6931471805599453;
}

static const vi EVERYWHERE = {0};

INLINE vi first_lanes(int64_t n) {
    vi inside;
    for (int j = 0; j < LANES; j++) inside[j] = -(j < n);
    return inside;
}

/* A mark of the parameters: a hash of every byte of all means and rhos, in their order, so that a change shows by
   whatever means it was made. Two vectors are taken per step, one of the means and one of the rhos; each step is
   one-to-one in the state and in both. Blocks are marked on their own, and their marks added up. */
#define MARK ((vu){0} + 0x9E3779B9u)

INLINE vu mark_vectors(vu state, vu mean, vu rho) {
    state += mean;
    return ((state << 7) | (state >> 25)) ^ rho;
}

/* One tile forward: theta, the tile's part of the KL, and the squared weights. */
INLINE double draw_tile(const Prior *prior, const int kind, const int sums, const float *mean, const float *rho,
                        const float *eps, float *theta, float *squares, int64_t n, vu *mark) {
    Sums s = {{0}, {0}, all(1.0f), {0}};
    vu state = *mark;
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        vf m = load(mean + j), r = load(rho + j);
        vf w = draw_vector(prior, kind, sums, m, r, load(eps + j), ~EVERYWHERE, &s);
        store(theta + j, w);
        if (sums) state = mark_vectors(state, (vu)m, (vu)r);
        if (sums && kind == GROUPS) store(squares + j, w * w);
        if (sums && TILE / LANES > 64 && j / LANES % 64 == 63) settle(&s);
    }
    if (j < n) {
        vf m = load_some(mean + j, n - j), r = load_some(rho + j, n - j);
        vf w = draw_vector(prior, kind, sums, m, r, load(eps + j), first_lanes(n - j), &s);
        store_some(theta + j, w, n - j);
        if (sums && kind == GROUPS) store(squares + j, w * w);
        if (sums) state = mark_vectors(state, (vu)m, (vu)r);
    }
    *mark = state;
    return sums ? sum_of(&s) : 0.0;
}

static double sum_floats(const float *x, int64_t n) {
    vf sum = {0};
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) sum += load(x + j);
    if (j < n) sum += load_some(x + j, n - j);
    return total(sum);
}

/* Where a block's sums of squares go. By row: whole rows to their groups, the block's first and last to its edges. */
typedef struct {
    double *groups, *own;
} Places;

static void add_squares(const Shape *shape, Places at, const float *squares, int64_t start, int64_t n, int64_t first,
                        int64_t end) {
    if (shape->kind == WHOLE) {
        at.own[0] += sum_floats(squares, n);
        return;
    }
    for (int64_t j = 0; j < n;) {
        int64_t place = (start + j) % shape->row, row = (start + j) / shape->row;
        int64_t run = shape->row - place < n - j ? shape->row - place : n - j;
        if (shape->kind == BY_ROW) {
            int inner = row * shape->row >= first && (row + 1) * shape->row <= end;
            double *to = inner ? at.groups + row : at.own + (row * shape->row >= first);
            *to += sum_floats(squares + j, run);
        } else if (shape->rest == 1) {
            double *to = at.own + place;
            for (int64_t k = 0; k < run; k++) to[k] += squares[j + k];
        } else {
            for (int64_t k = 0; k < run;) {
                int64_t column = (place + k) / shape->rest, more = (column + 1) * shape->rest - place - k;
                if (more > run - k) more = run - k;
                at.own[column] += sum_floats(squares + j + k, more);
                k += more;
            }
        }
        j += run;
    }
}

/* Collects the blocks' sums of squares, in order, into the groups of one tensor. */
static void collect(const Shape *shape, double *groups, const double *partials) {
    for (int64_t b = 0; b < shape->blocks; b++) {
        if (shape->kind == WHOLE) {
            groups[0] += partials[b];
        } else if (shape->kind == BY_COLUMN) {
            const double *own = partials + b * shape->columns;
            for (int64_t k = 0; k < shape->columns; k++) groups[k] += own[k];
        } else {
            int64_t first = b * shape->block, end = first + shape->block;
            if (end > shape->numel) end = shape->numel;
            int64_t top = first / shape->row, bottom = (end - 1) / shape->row;
            if (first % shape->row) groups[top] += partials[2 * b];
            if (end % shape->row && (bottom != top || first % shape->row == 0)) groups[bottom] += partials[2 * b + 1];
        }
    }
}

/* -log p of one group of n weights with squares Q, and its derivative in Q. */
static double group_cost(const Prior *p, double n, double squares, float *slope) {
    double a = p->log_pi[0] - n * p->log_sigma[0] - p->half[0] * squares;
    double d = p->log_pi[1] - n * p->log_sigma[1] - p->half[1] * squares - a; /* log of second over first */
    double e = fabs(d) < 40 ? exp(-fabs(d)) : 0.0;
    *slope = (float)(p->half[0] + (p->half[1] - p->half[0]) * (d < 0 ? e : 1.0) / (1 + e));
    return -(a + (d > 0 ? d : 0.0) + (e > 0 ? log1p(e) : 0.0));
}

/* The tensor that a block belongs to. */
static int tensor_of(const Shape *shapes, int count, int64_t block) {
    int k = 0;
    while (k + 1 < count && block >= shapes[k + 1].first_block) k++;
    return k;
}

INLINE vu mark_bytes(vu state, const char *mean, const char *rho, int64_t bytes) {
    int64_t j = 0;
    vu a, b;
    for (; j + (int64_t)sizeof(vu) <= bytes; j += sizeof(vu)) {
        memcpy(&a, mean + j, sizeof(vu));
        memcpy(&b, rho + j, sizeof(vu));
        state = mark_vectors(state, a, b);
    }
    if (j < bytes) {
        a = b = (vu){0};
        memcpy(&a, mean + j, (size_t)(bytes - j));
        memcpy(&b, rho + j, (size_t)(bytes - j));
        state = mark_vectors(state, a, b);
    }
    return state;
}

static uint64_t fold(vu state, uint64_t place) {
    uint64_t mark = (place + 1) * 0xD1B54A32D192ED03u;
    for (int j = 0; j < LANES; j++) {
        mark = (mark ^ state[j]) * 0x9E3779B97F4A7C15u;
        mark ^= mark >> 32;
    }
    return mark;
}

/* The mark of parameters of any type, `item` bytes each. pointers: of all means, then of all rhos. */
uint64_t bayesrnn_mark(int count, const Shape *shapes, const char *const *pointers, int64_t item, int threads) {
    const Shape *last = shapes + count - 1;
    const int64_t blocks = last->first_block + last->blocks;
    uint64_t marks = 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) reduction(+ : marks)
    for (int64_t b = 0; b < blocks; b++) {
        const int k = tensor_of(shapes, count, b);
        const Shape *shape = shapes + k;
        int64_t first = (b - shape->first_block) * shape->block, n = shape->numel - first;
        if (n > shape->block) n = shape->block;
        const char *mean = pointers[k] + item * first, *rho = pointers[count + k] + item * first;
        marks += fold(mark_bytes(MARK, mean, rho, item * n), (uint64_t)b);
    }
    return marks;
}

static double draw_block(const Shape *shape, const Prior *prior, const float *mean, const float *rho, float *theta,
                         uint64_t seed, uint32_t tensor, int64_t first, int64_t end, Places at, vu *mark) {
    float eps[TILE] __attribute__((aligned(64))), squares[TILE] __attribute__((aligned(64)));
    double sum = 0;
    const int grouped = prior->sums && prior->kind == GROUPS;
    for (int64_t i = first; i < end; i += TILE) {
        int64_t n = end - i < TILE ? end - i : TILE;
        normal_tile(eps, seed, tensor, shape, i, n);
#define DRAW(KIND, SUMS) draw_tile(prior, KIND, SUMS, mean + i, rho + i, eps, theta + i, squares, n, mark)
        if (!prior->sums) sum += DRAW(NONE, 0);
        else if (prior->kind == NORMAL) sum += DRAW(NORMAL, 1);
        else if (prior->kind == GROUPS) sum += DRAW(GROUPS, 1);
        else if (prior->kind == WEIGHTS) sum += DRAW(WEIGHTS, 1);
        else sum += DRAW(NONE, 1);
#undef DRAW
        if (grouped) add_squares(shape, at, squares, i, n, first, end);
    }
    return sum;
}

/* All tensors. pointers: mean, rho, theta of each. partials: one number per block, then what `first_partial` counts.
   Gives the KL, in `slopes` the derivative of each group's -log p in its squares, and, where the KL is wanted, in
   `total` what bayesrnn_mark gives. */
double bayesrnn_draw(int count, const Shape *shapes, const Prior *prior, float *const *pointers, uint64_t seed,
                     double *partials, double *groups, float *slopes, uint64_t *total, int threads) {
    const Shape *last = shapes + count - 1;
    const int64_t blocks = last->first_block + last->blocks, all_groups = last->first_group + last->groups;
    const int grouped = prior->sums && prior->kind == GROUPS;
    double *sums = partials, *own = partials + blocks;
    uint64_t marks = 0;
    if (grouped) memset(groups, 0, (size_t)all_groups * sizeof(double));
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic, 1)
        for (int64_t b = 0; b < blocks; b++) {
            const int k = tensor_of(shapes, count, b);
            const Shape *shape = shapes + k;
            int64_t local = b - shape->first_block, first = local * shape->block, end = first + shape->block;
            int64_t width = shape->kind == BY_COLUMN ? shape->columns : shape->kind == BY_ROW ? 2 : 1;
            if (end > shape->numel) end = shape->numel;
            Places at = {groups + shape->first_group, own + shape->first_partial + local * width};
            if (grouped) memset(at.own, 0, (size_t)width * sizeof(double));
            vu mark = MARK;
            sums[b] = draw_block(shape, prior, pointers[3 * k], pointers[3 * k + 1], pointers[3 * k + 2], seed,
                                 (uint32_t)k, first, end, at, &mark);
            const uint64_t folded = fold(mark, (uint64_t)b);
#pragma omp atomic
            marks += folded;
        }
        if (grouped) {
#pragma omp for schedule(dynamic, 1)
            for (int k = 0; k < count; k++)
                collect(shapes + k, groups + shapes[k].first_group, own + shapes[k].first_partial);
#pragma omp for schedule(static)
            for (int64_t g = 0; g < all_groups; g++) {
                int k = 0;
                while (k + 1 < count && g >= shapes[k + 1].first_group) k++;
                groups[g] = group_cost(prior, (double)shapes[k].group_size, groups[g], slopes + g);
            }
        }
    }
    *total = marks;
    double kl = prior->constant;
    if (prior->sums)
        for (int64_t b = 0; b < blocks; b++) kl += sums[b];
    if (grouped)
        for (int64_t g = 0; g < all_groups; g++) kl += groups[g];
    return kl;
}

/* Several draws of all tensors, without a KL. pointers: mean, rho, theta of each; the draws of a tensor follow each
   other in memory. sigma is made once for all of them. */
void bayesrnn_draw_many(int count, const Shape *shapes, float *const *pointers, const uint64_t *seeds, int64_t draws,
                        int threads) {
    const Shape *last = shapes + count - 1;
    const int64_t blocks = last->first_block + last->blocks;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t b = 0; b < blocks; b++) {
        const int k = tensor_of(shapes, count, b);
        const Shape *shape = shapes + k;
        const float *mean = pointers[3 * k], *rho = pointers[3 * k + 1];
        float eps[TILE] __attribute__((aligned(64))), sigma[TILE] __attribute__((aligned(64)));
        int64_t first = (b - shape->first_block) * shape->block, end = first + shape->block;
        if (end > shape->numel) end = shape->numel;
        for (int64_t i = first; i < end; i += TILE) {
            int64_t n = end - i < TILE ? end - i : TILE;
            for (int64_t j = 0; j < n; j += LANES) {
                vf a, e;
                store(sigma + j, softplus(load_some(rho + i + j, n - j), &a, &e));
            }
            for (int64_t d = 0; d < draws; d++) {
                float *theta = pointers[3 * k + 2] + d * shape->numel + i;
                normal_tile(eps, seeds[d], (uint32_t)k, shape, i, n);
                for (int64_t j = 0; j < n; j += LANES)
                    store_some(theta + j, load_some(mean + i + j, n - j) + load(sigma + j) * load(eps + j), n - j);
            }
        }
    }
}

/* What multiplies 2 d_kl theta in the gradient of each weight of a tile: the slope of its group. */
static void spread_slopes(const Shape *shape, const float *slopes, float *out, int64_t start, int64_t n) {
    for (int64_t j = 0; j < n;) {
        int64_t place = (start + j) % shape->row, row = (start + j) / shape->row;
        int64_t run = shape->row - place < n - j ? shape->row - place : n - j;
        if (shape->kind == BY_COLUMN && shape->rest == 1) memcpy(out + j, slopes + place, (size_t)run * sizeof(float));
        else
            for (int64_t k = 0; k < run; k++)
                out[j + k] = slopes[shape->kind == WHOLE ? 0 : shape->kind == BY_ROW ? row : (place + k) / shape->rest];
        j += run;
    }
}

/* One vector of gradients. d: of theta. */
INLINE void gradient_vector(const Prior *prior, const int kind, const int sums, float d_kl, vf mean, vf rho, vf eps,
                            vf d, vf slope, vf *d_mean, vf *d_rho) {
    vf a, e, sigma = softplus(rho, &a, &e), over = inverse(1.0f + e), theta = mean + sigma * eps;
    vf rate = where(rho < 0.0f, e, all(1.0f)) * over; /* d sigma / d rho */
    if (sums && kind == GROUPS) d += slope * theta * (2.0f * d_kl);
    if (sums && kind == WEIGHTS) {
        vf factor;
        mixture(prior, theta * theta, &factor);
        d += factor * theta * d_kl;
    }
    *d_rho = rate * eps * d;
    if (sums && kind == NORMAL) {
        const float scale = d_kl * (float)prior->wide;
        d += mean * scale;
        *d_rho += rate * sigma * scale;
    }
    if (sums) *d_rho -= over * inverse(a) * d_kl;
    *d_mean = d;
}

INLINE void gradient_tile(const Prior *prior, const int kind, const int sums, float d_kl, const float *mean,
                          const float *rho, const float *eps, const float *d, const float *slopes, float *d_mean,
                          float *d_rho, int64_t n) {
    int64_t j = 0;
    vf new_mean, new_rho, nothing = {0};
    for (; j + LANES <= n; j += LANES) {
        gradient_vector(prior, kind, sums, d_kl, load(mean + j), load(rho + j), load(eps + j), d ? load(d + j) : nothing,
                        kind == GROUPS ? load(slopes + j) : nothing, &new_mean, &new_rho);
        if (d_mean) store(d_mean + j, new_mean);
        store(d_rho + j, new_rho);
    }
    if (j < n) {
        gradient_vector(prior, kind, sums, d_kl, load_some(mean + j, n - j), load_some(rho + j, n - j), load(eps + j),
                        d ? load_some(d + j, n - j) : nothing, kind == GROUPS ? load(slopes + j) : nothing, &new_mean,
                        &new_rho);
        if (d_mean) store_some(d_mean + j, new_mean, n - j);
        store_some(d_rho + j, new_rho, n - j);
    }
}

/* All tensors. pointers: mean, rho, d_theta (or null: zero), d_mean (or null: not wanted, it is d_theta), d_rho. */
void bayesrnn_draw_backward(int count, const Shape *shapes, const Prior *prior, float *const *pointers, uint64_t seed,
                            const float *slopes, float d_kl, int threads) {
    const Shape *last = shapes + count - 1;
    const int64_t blocks = last->first_block + last->blocks;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t b = 0; b < blocks; b++) {
        const int k = tensor_of(shapes, count, b);
        const Shape *shape = shapes + k;
        float *const *p = pointers + 5 * k;
        if (!p[4]) continue;
        float eps[TILE] __attribute__((aligned(64))), spread[TILE] __attribute__((aligned(64)));
        int64_t first = (b - shape->first_block) * shape->block, end = first + shape->block;
        if (end > shape->numel) end = shape->numel;
        for (int64_t i = first; i < end; i += TILE) {
            int64_t n = end - i < TILE ? end - i : TILE;
            normal_tile(eps, seed, (uint32_t)k, shape, i, n);
            if (prior->sums && prior->kind == GROUPS) spread_slopes(shape, slopes + shape->first_group, spread, i, n);
            const float *d = p[2] ? p[2] + i : 0;
            float *d_mean = p[3] ? p[3] + i : 0;
#define GRADIENT(KIND, SUMS) \
    gradient_tile(prior, KIND, SUMS, d_kl, p[0] + i, p[1] + i, eps, d, spread, d_mean, p[4] + i, n)
            if (!prior->sums) GRADIENT(NONE, 0);
            else if (prior->kind == NORMAL) GRADIENT(NORMAL, 1);
            else if (prior->kind == GROUPS) GRADIENT(GROUPS, 1);
            else if (prior->kind == WEIGHTS) GRADIENT(WEIGHTS, 1);
            else GRADIENT(NONE, 1);
#undef GRADIENT
        }
    }
}

/* The noise itself, one tensor after the other. */
void bayesrnn_noise(int count, const Shape *shapes, float *const *pointers, uint64_t seed, int threads) {
    const Shape *last = shapes + count - 1;
    const int64_t blocks = last->first_block + last->blocks;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t b = 0; b < blocks; b++) {
        const int k = tensor_of(shapes, count, b);
        const Shape *shape = shapes + k;
        float eps[TILE] __attribute__((aligned(64)));
        int64_t first = (b - shape->first_block) * shape->block, end = first + shape->block;
        if (end > shape->numel) end = shape->numel;
        for (int64_t i = first; i < end; i += TILE) {
            int64_t n = end - i < TILE ? end - i : TILE;
            normal_tile(eps, seed, (uint32_t)k, shape, i, n);
            memcpy(pointers[k] + i, eps, (size_t)n * sizeof(float));
        }
    }
}
