// Kernels for Remora's card, written in AssemblyScript and loaded as WebAssembly.
//
// A kernel is a function `kernel(): u32` that a module exports. It runs once for each call, on the
// card of the node that has loaded it. It can use what is declared here: the call and its payload,
// granted registered memory, and the way back to the requester. No function here blocks the card: a
// kernel that has to wait is suspended. `guest/c/remora_kernel.h` says more of each.
//
//     asc tail.ts -O -o tail.wasm
//     remora kernel load NODE tail.wasm --opcode 0x100
//
// At the start of a call, the globals and the memory of a module are either as the last call on the
// same queue pair left them, or as the module defines them. State that must last belongs into
// registered memory.

// Why a kernel ends without success: the code that its requester gets. Codes from 128 on are free
// for kernels to use.
export const OK: u32 = 0;
export const BAD_PARAMS: u32 = 2;
export const NOT_FOUND: u32 = 3;
export const TOO_LONG: u32 = 4;
export const ACCESS: u32 = 5;

// Functions return a status unless their comment says otherwise.

// Copies the parameters, at most `len` bytes. Returns the length of all of them, or the negative of
// a status.
@external("remora", "params")
export declare function params(into: usize, len: u32): i32;

// Waits for payload and copies at most `len` bytes of it. Returns the number of bytes, 0 at the
// end, or the negative of a status.
@external("remora", "payload")
export declare function payload(into: usize, len: u32): i32;

// Read and write granted memory, at most a megabyte at a time.
@external("remora", "read")
export declare function read(addr: u64, into: usize, len: u32): u32;
@external("remora", "write")
export declare function write(addr: u64, from: usize, len: u32): u32;

// Appends granted memory to the results without a copy: the card reads it when it sends it.
@external("remora", "send_memory")
export declare function send_memory(addr: u64, len: u32): u32;

// Appends bytes to the results.
@external("remora", "output")
export declare function output(from: usize, len: u32): u32;

// Writes the granted region with index `index`, which counts from 0: address u64, length u64, and 1
// if it may be written, else 0, u64.
@external("remora", "granted")
export declare function granted(index: u32, into: usize): u32;
