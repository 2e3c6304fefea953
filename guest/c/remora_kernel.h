/* Kernels for Remora's card, written in C and loaded as WebAssembly.
 *
 * A kernel is a function that REMORA_KERNEL exports. It runs once for each call, on the card of the
 * node that has loaded it. It can use what is declared here: the call and its payload, granted
 * registered memory, and the way back to the requester. No function here blocks the card: a kernel
 * that has to wait is suspended.
 *
 *     clang --target=wasm32 -O2 -ffreestanding -nostdlib -Wl,--no-entry -Wl,--strip-all \
 *         -o lines.wasm lines.c
 *     remora kernel load NODE lines.wasm --opcode 0x100
 *
 * At the start of a call, the globals and the memory of a module are either as the last call on the
 * same queue pair left them, or as the module defines them. State that must last belongs into
 * registered memory.
 */
#ifndef REMORA_KERNEL_H
#define REMORA_KERNEL_H

#include <stdint.h>

/* Why a kernel ends without success: the code that its requester gets. Codes from 128 on are free
 * for kernels to use. */
enum remora_status {
    REMORA_OK = 0,
    REMORA_BAD_PARAMS = 2,   /* the parameters are malformed */
    REMORA_NOT_FOUND = 3,    /* the requested item does not exist */
    REMORA_TOO_LONG = 4,     /* the result does not fit the requester's buffer */
    REMORA_ACCESS = 5,       /* memory that was not granted or cannot be reached */
    REMORA_BUDGET = 6,       /* the invocation has used up its budget */
    REMORA_INCONSISTENT = 7, /* the object was inconsistent at every reading */
    REMORA_TRAP = 8,         /* the kernel itself failed */
    REMORA_MEMORY = 9,       /* the kernel needs more memory than its limit */
};

/* A call. */
struct remora_call {
    uint32_t qpn;        /* the queue pair that the call came by */
    uint32_t max_len;    /* the most bytes of results that the requester takes */
    uint64_t opcode;     /* the op-code of the call */
    uint64_t cookie;     /* the cookie that the requester chose for the call */
    uint32_t params_len; /* the length of the parameters in bytes */
    uint32_t reserved;
};

_Static_assert(sizeof(struct remora_call) == 32, "the card writes 32 bytes");

/* The kernel: a function without parameters that returns a status. */
#define REMORA_KERNEL __attribute__((export_name("kernel"))) uint32_t kernel(void)

#define REMORA_IMPORT(name) __attribute__((import_module("remora"), import_name(#name)))

/* Functions return a status unless their comment says otherwise. */

/* Writes the call that this invocation answers. */
REMORA_IMPORT(call) uint32_t remora_call(struct remora_call *into);

/* Copies the parameters, at most `len` bytes. Returns the length of all of them, or the negative of
 * a status. */
REMORA_IMPORT(params) int32_t remora_params(void *into, uint32_t len);

/* Waits for payload and copies at most `len` bytes of it. Returns the number of bytes, 0 at the
 * end, or the negative of a status. */
REMORA_IMPORT(payload) int32_t remora_payload(void *into, uint32_t len);

/* Read and write granted memory, at most a megabyte at a time. */
REMORA_IMPORT(read) uint32_t remora_read(uint64_t addr, void *into, uint32_t len);
REMORA_IMPORT(write) uint32_t remora_write(uint64_t addr, const void *from, uint32_t len);

/* Appends granted memory to the results, as it is now. */
REMORA_IMPORT(fetch) uint32_t remora_fetch(uint64_t addr, uint32_t len);

/* Appends granted memory to the results without a copy: the card reads it when it sends it. */
REMORA_IMPORT(send_memory) uint32_t remora_send_memory(uint64_t addr, uint32_t len);

/* Appends bytes to the results. */
REMORA_IMPORT(output) uint32_t remora_output(const void *from, uint32_t len);

/* Writes bytes into a peer's memory, on a queue pair of the same protection domain. */
REMORA_IMPORT(send_to)
uint32_t remora_send_to(uint32_t qpn, uint32_t rkey, uint64_t addr, const void *from,
                        uint32_t len);

/* Waits until the peers have acknowledged all that remora_send_to has sent. */
REMORA_IMPORT(sent) uint32_t remora_sent(void);

/* Lets other invocations run first. */
REMORA_IMPORT(yield_now) uint32_t remora_yield_now(void);

/* Writes the granted region with index `index`, which counts from 0. */
struct remora_granted {
    uint64_t addr;     /* its first address */
    uint64_t len;      /* its length in bytes */
    uint64_t writable; /* not 0 if the kernel may write it */
};
REMORA_IMPORT(granted) uint32_t remora_granted(uint32_t index, struct remora_granted *into);

/* A tap: the card calls it for each payload of the WRITEs that the module is bound to, as the
 * payload passes. The tap takes the payload with remora_payload, reads and writes granted memory,
 * and puts out, with remora_output, the bytes to write instead. It can use no other functions. It
 * returns a verdict, or the negative of a status. A tap that fails is stopped, and later WRITEs
 * pass unchanged.
 *
 * One instance sees the whole stream and keeps its globals as long as it is bound. Calls of the
 * module's kernel do not see these globals: results for calls belong into granted memory. */
#define REMORA_TAP __attribute__((export_name("tap"))) int32_t tap(void)

enum remora_verdict {
    REMORA_PASS = 0,    /* the payload is written at its destination */
    REMORA_REPLACE = 1, /* the tap's output is written there instead; it may be shorter */
    REMORA_TAKE = 2,    /* nothing is written */
};

/* A payload that passes: in a tap only. */
struct remora_passing {
    uint64_t addr;   /* its destination address, from the WRITE */
    uint32_t qpn;    /* the queue pair that received or sends it */
    uint32_t len;    /* its length in bytes, usually that of one packet's payload */
    uint32_t offset; /* bytes of the message before this payload */
    uint32_t total;  /* bytes of the whole message */
    uint32_t again;  /* not 0 if it was sent before and is sent again; only where it is sent */
    uint32_t reserved;
};

_Static_assert(sizeof(struct remora_passing) == 32, "the card writes 32 bytes");

REMORA_IMPORT(passing) uint32_t remora_passing(struct remora_passing *into);

#endif
