/* Normal numbers by place: a counter-based generator, so that any part of a tensor's noise can be made, again and by any
   thread, from the seed alone. */

#define GROUP 64 /* weights whose noise is made together: 16 counters of 4 words, whatever the machine's vectors */

/* Threefry-4x32-20 (Salmon et al. 2011) on LANES counters at once; x holds the counters, then the random words. */
INLINE void threefry(vu x[4], const uint32_t key[4]) {
    const uint32_t keys[5] = {key[0], key[1], key[2], key[3], 0x1BD11BDAu ^ key[0] ^ key[1] ^ key[2] ^ key[3]};
    static const int turn[8][2] = {{10, 26}, {11, 21}, {13, 27}, {23, 5}, {6, 20}, {17, 11}, {25, 10}, {18, 20}};
    for (int j = 0; j < 4; j++) x[j] += keys[j];
#pragma GCC unroll 20
    for (int round = 0; round < 20; round++) {
        const int odd = round & 1, a = turn[round % 8][0], b = turn[round % 8][1], u = odd ? 3 : 1, v = odd ? 1 : 3;
        x[0] += x[u];
        x[u] = ((x[u] << a) | (x[u] >> (32 - a))) ^ x[0];
        x[2] += x[v];
        x[v] = ((x[v] << b) | (x[v] >> (32 - b))) ^ x[2];
        if (round % 4 == 3) {
            const uint32_t count = (uint32_t)(round / 4 + 1);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) x[j] += keys[(count + (uint32_t)j) % 5];
            x[3] += count;
        }
    }
}

/* Two normal numbers of two random words (Box and Muller 1958). */
INLINE void normal_pair(vu a, vu b, vf *first, vf *second) {
    vf u = __builtin_convertvector((vi)(a >> 1), vf) * 4.656612873e-10f + 2.328306437e-10f; /* in (0, 1] */
    vf radius = root(larger(all(0.0f), logarithm(u) * -2.0f));
    vu quarter = (b + 0x20000000u) >> 30;
    vf angle = __builtin_convertvector((vi)(b - (quarter << 30)), vf) * 1.462918079e-09f; /* within pi / 4 */
    vf square = angle * angle;
    vf s = square * -1.950182201e-04f + 8.332016454e-03f;
    s = s * square - 1.666665022e-01f;
    s = s * square + 1.0f;
    s = s * angle * radius;
    vf c = square * -1.357940408e-03f + 4.165441957e-02f;
    c = c * square - 4.999984243e-01f;
    c = (c * square + 1.0f) * radius;
    vi odd = -(vi)(quarter & 1u);
    vu sine_sign = (quarter >> 1) << 31, cosine_sign = ((quarter + 1u) >> 1) << 31;
    *first = (vf)((vu)where(odd, s, c) ^ cosine_sign);
    *second = (vf)((vu)where(odd, c, s) ^ sine_sign);
}

/* Noise of the weights 64 `group` .. 64 `group` + 63 of one tensor. */
INLINE void normal_group(float *out, uint64_t seed, uint32_t tensor, uint64_t group) {
    const uint32_t key[4] = {(uint32_t)seed, (uint32_t)(seed >> 32), 0, 0};
#pragma GCC unroll 4
    for (int part = 0; part < 16; part += LANES) {
        vu count;
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++) count[j] = (uint32_t)(part + j);
        vu x[4] = {count + (uint32_t)(group << 4), (vu){0} + (uint32_t)(group >> 28), (vu){0} + tensor, (vu){0}};
        threefry(x, key);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            vf first, second;
            normal_pair(x[2 * half], x[2 * half + 1], &first, &second);
            store(out + 32 * half + part, first);
            store(out + 32 * half + 16 + part, second);
        }
    }
}

/* The generator alone, for tests: the words of one counter. */
void bayesrnn_words(const uint32_t counter[4], const uint32_t key[4], uint32_t words[4]) {
    vu x[4];
    for (int j = 0; j < 4; j++) x[j] = (vu){0} + counter[j];
    threefry(x, key);
    for (int j = 0; j < 4; j++) words[j] = x[j][0];
}
