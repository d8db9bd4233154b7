// The tile unit (AMX) in software, for processors without one: catches its instructions, and does what they say.
//
// It is linked or preloaded (LD_PRELOAD). It supports what shared.h uses of the unit: eight whole tiles, and addresses
// of base, index and distance. A wrong configuration, or none, ends the process with code 70.

#define _GNU_SOURCE
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static __thread uint8_t shape[64], tile[8][16][64];
static const int REGISTERS[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

static void expect(int right, const char *else_say) {
    if (right) return;
    if (write(2, else_say, strlen(else_say)) < 0) _exit(71);
    _exit(70);
}

static void check_shape(void) {  // palette 1; bytes of a row from 16 on, rows from 48 on
    int wrong = shape[0] != 1;
    for (int i = 1; i < 64; i++) wrong |= shape[i] != (i >= 16 && i < 32 && i % 2 == 0 ? 64 : i >= 48 && i < 56 ? 16 : 0);
    expect(!wrong, "the tile unit got a wrong configuration\n");
}

static float widened(uint16_t bfloat16) {
    const uint32_t bits = (uint32_t)bfloat16 << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static void add_products(int c, int a, int b) {  // rows of tile b hold pairs: two rows' numbers, column by column
    float sum[16][16];
    uint16_t left[16][32], right[16][32];
    memcpy(sum, tile[c], 1024), memcpy(left, tile[a], 1024), memcpy(right, tile[b], 1024);
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 32; k++)
            for (int j = 0; j < 16; j++) sum[i][j] += widened(left[i][k]) * widened(right[k / 2][2 * j + k % 2]);
    memcpy(tile[c], sum, 1024);
}

static void on_unknown_instruction(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    greg_t *value = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *code = (const uint8_t *)value[REG_RIP];
    expect(code[0] == 0xc4 && (code[1] & 31) == 2, "this processor lacks an instruction that is not the tile unit's\n");
    // a prefix of three bytes with the upper bits of three registers, inverted, and a fourth register; the instruction
    const int above_reg = !(code[1] & 128) << 3, above_index = !(code[1] & 64) << 3, above_base = !(code[1] & 32) << 3;
    const int fourth = ~(code[2] >> 3) & 15, instruction = code[3] << 4 | (code[2] & 3);
    const int mod = code[4] >> 6, reg = (code[4] >> 3 & 7) | above_reg, rm = code[4] & 7;
    const uint8_t *next = code + 5;
    uint8_t *base = 0;
    int64_t stride = 0;
    if (mod != 3) {
        int base_register = rm | above_base;
        if (rm == 4) {  // another byte: scale, index, base
            const int index = (*next >> 3 & 7) | above_index;
            if (index != 4) stride = value[REGISTERS[index]] << (*next >> 6);
            base_register = (*next++ & 7) | above_base;
        }
        expect(mod || (base_register & 7) != 5, "an address that shared.h does not use\n");
        int32_t distance = 0;
        if (mod == 1) distance = (int8_t)*next;
        if (mod == 2) memcpy(&distance, next, 4);
        next += mod == 2 ? 4 : mod;
        base = (uint8_t *)value[REGISTERS[base_register]] + distance;
    }
    if (instruction == 0x490) {  // ldtilecfg, tilerelease
        memset(shape, 0, 64);
        if (base) memcpy(shape, base + stride, 64), check_shape();
    } else {
        check_shape();
        if (instruction == 0x493) memset(tile[reg], 0, 1024);
        else if (instruction == 0x4b3) for (int i = 0; i < 16; i++) memcpy(tile[reg][i], base + i * stride, 64);
        else if (instruction == 0x4b2) for (int i = 0; i < 16; i++) memcpy(base + i * stride, tile[reg][i], 64);
        else if (instruction == 0x5c2) add_products(reg, rm, fourth);
        else expect(0, "an instruction of the tile unit that shared.h does not use\n");
    }
    value[REG_RIP] = (greg_t)next;
}

// The system has no such unit, and so cannot give permission to use it.
long syscall(long number, ...) {
    va_list list;
    va_start(list, number);
    const long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
    register long d __asm__("r10") = va_arg(list, long), e __asm__("r8") = va_arg(list, long);
    register long f __asm__("r9") = va_arg(list, long);
    va_end(list);
    if (number == SYS_arch_prctl && a == 0x1023) return 0;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(d), "r"(e), "r"(f)
                     : "rcx", "r11", "memory");
    return result;
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_NODEFER};
    action.sa_sigaction = on_unknown_instruction;
    sigaction(SIGILL, &action, 0);
}
