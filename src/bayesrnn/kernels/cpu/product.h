/* Products of a few rows with a packed matrix. A matrix is packed into panels of up to MOST vectors of outputs, so that
   one pass over a panel feeds ROWS * MOST sums that stay in registers. */

#define MOST 4

/* out[r][v] = sum over k of a_v[r][k] * panel[k][v], for R rows and NV vectors; a_v is one input, or one for each v. */
INLINE void tile(const int R, const int NV, const int own, const float *panel, const float *a, int64_t a_row,
                 int64_t a_vector, int64_t depth, float *out) {
    vf sums[ROWS][MOST];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) sums[r][v] = (vf){0};
    for (int64_t k = 0; k < depth; k++) {
        vf weights[MOST];
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) weights[v] = load(panel + (k * NV + v) * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) sums[r][v] += weights[v] * a[(own ? v * a_vector : 0) + r * a_row + k];
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) store(out + (r * MOST + v) * LANES, sums[r][v]);
}

#define TILE_OF(R, NV, OWN)                                                                                       \
    static void tile_##R##_##NV##_##OWN(const float *panel, const float *a, int64_t a_row, int64_t a_vector,      \
                                        int64_t depth, float *out) {                                             \
        tile(R, NV, OWN, panel, a, a_row, a_vector, depth, out);                                                 \
    }
#define TILES_OF(R) \
    TILE_OF(R, 1, 0) TILE_OF(R, 2, 0) TILE_OF(R, 3, 0) TILE_OF(R, 4, 0) TILE_OF(R, 3, 1) TILE_OF(R, 4, 1)
TILES_OF(1)
TILES_OF(2)
TILES_OF(3)
#if ROWS == 6
TILES_OF(4)
TILES_OF(5)
TILES_OF(6)
#endif

typedef void (*Tile)(const float *, const float *, int64_t, int64_t, int64_t, float *);
#define NAMES(R)                                                                          \
    {                                                                                     \
        {tile_##R##_1_0, tile_##R##_2_0, tile_##R##_3_0, tile_##R##_4_0}, {               \
            0, 0, tile_##R##_3_1, tile_##R##_4_1                                          \
        }                                                                                 \
    }
static const Tile TILES[ROWS][2][MOST] = {NAMES(1), NAMES(2), NAMES(3)
#if ROWS == 6
                                          , NAMES(4), NAMES(5), NAMES(6)
#endif
};

/* Vectors of outputs cut into panels as even as can be. */
typedef struct {
    int64_t vectors, panels;
} Cut;

INLINE Cut cut(int64_t columns) {
    int64_t vectors = (columns + LANES - 1) / LANES;
    return (Cut){vectors, (vectors + MOST - 1) / MOST};
}
INLINE int64_t first_vector(Cut c, int64_t panel) { return panel * c.vectors / c.panels; }

/* panel[k][v][lane] = w[row + lane][k] for `lanes` rows of a matrix with `depth` columns; the other lanes are 0. */
static void pack_rows(const float *w, int64_t depth, int64_t lanes, int64_t nv, float *panel) {
    for (int64_t k = 0; k < depth; k += LANES) {
        int64_t n = depth - k < LANES ? depth - k : LANES;
        vf square[LANES];
        for (int64_t lane = 0; lane < LANES; lane++)
            square[lane] = lane < lanes ? load_some(w + lane * depth + k, n) : (vf){0};
        transpose(square);
        for (int64_t j = 0; j < n; j++) store(panel + (k + j) * nv * LANES, square[j]);
    }
}

/* The input products of several draws: out[d] = x[d] w[d]^T + bias[d], with x (rows, inputs), one for each draw or one
   for all, w (outputs, inputs) and bias (outputs) or null. packed: scratch of all threads. */
void bayesrnn_products_many(const float *x, int64_t x_draw, const float *w, const float *bias, float *out, float *packed,
                            int64_t rows, int64_t inputs, int64_t outputs, int64_t draws, int threads) {
    const Cut c = cut(outputs);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t d = 0; d < draws; d++) {
        float *panel = packed + THREAD * MOST * LANES * inputs, sums[ROWS * MOST * LANES] __attribute__((aligned(64)));
        for (int64_t p = 0; p < c.panels; p++) {
            const int64_t first = first_vector(c, p), nv = first_vector(c, p + 1) - first;
            for (int64_t v = 0; v < nv; v++) {
                int64_t u = (first + v) * LANES, left = outputs - u;
                pack_rows(w + (d * outputs + u) * inputs, inputs, left < LANES ? left : LANES, nv, panel + v * LANES);
            }
            const int64_t groups = (rows + ROWS - 1) / ROWS;
            for (int64_t g = 0; g < groups; g++) {
                const int64_t start = g * rows / groups, count = (g + 1) * rows / groups - start;
                TILES[count - 1][0][nv - 1](panel, x + d * x_draw + start * inputs, inputs, 0, inputs, sums);
                for (int64_t r = 0; r < count; r++)
                    for (int64_t v = 0; v < nv; v++) {
                        int64_t u = (first + v) * LANES, left = outputs - u;
                        vf y = load(sums + (r * MOST + v) * LANES);
                        if (bias) y += load_some(bias + d * outputs + u, left);
                        store_some(out + (d * rows + start + r) * outputs + u, y, left);
                    }
            }
        }
    }
}
