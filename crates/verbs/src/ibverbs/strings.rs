//! Names of enum values, and conversions of rates.

use core::ffi::{CStr, c_char, c_int};

use crate::abi::newer::IBV_WR_FLUSH;
use crate::abi::*;

/// The name of `number`.
fn name(table: &[(c_int, &'static CStr)], number: c_int) -> *const c_char {
    let found = table.iter().find(|(known, _)| *known == number);
    found.map_or(c"unknown", |(_, name)| *name).as_ptr()
}

/// `ibv_node_type_str`.
pub(super) extern "C" fn node_type_str(kind: ibv_node_type) -> *const c_char {
    name(
        &[
            (IBV_NODE_CA, c"InfiniBand channel adapter"),
            (IBV_NODE_SWITCH, c"InfiniBand switch"),
            (IBV_NODE_ROUTER, c"InfiniBand router"),
            (IBV_NODE_RNIC, c"iWARP NIC"),
            (IBV_NODE_USNIC, c"usNIC"),
            (IBV_NODE_USNIC_UDP, c"usNIC UDP"),
            (IBV_NODE_UNSPECIFIED, c"unspecified"),
        ],
        kind,
    )
}

/// `ibv_port_state_str`.
pub(super) extern "C" fn port_state_str(state: ibv_port_state) -> *const c_char {
    const NAMES: [&CStr; 6] =
        [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    NAMES.get(state as usize).copied().unwrap_or(c"unknown").as_ptr()
}

/// `ibv_event_type_str`.
pub(super) extern "C" fn event_type_str(event: ibv_event_type) -> *const c_char {
    const NAMES: [&CStr; 20] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    NAMES.get(event as usize).copied().unwrap_or(c"unknown").as_ptr()
}

/// `ibv_wc_status_str`.
pub(super) extern "C" fn wc_status_str(status: ibv_wc_status) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    NAMES.get(status as usize).copied().unwrap_or(c"unknown").as_ptr()
}

/// `ibv_wr_opcode_str`, of a later private version node.
pub(super) extern "C" fn wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    const NAMES: [&CStr; 11] = [
        c"RDMA_WRITE",
        c"RDMA_WRITE_WITH_IMM",
        c"SEND",
        c"SEND_WITH_IMM",
        c"RDMA_READ",
        c"ATOMIC_CMP_AND_SWP",
        c"ATOMIC_FETCH_AND_ADD",
        c"LOCAL_INV",
        c"BIND_MW",
        c"SEND_WITH_INV",
        c"TSO",
    ];
    match opcode {
        IBV_WR_FLUSH => c"FLUSH".as_ptr(),
        IBV_WR_ATOMIC_WRITE => c"ATOMIC_WRITE".as_ptr(),
        opcode => NAMES.get(opcode as usize).copied().unwrap_or(c"unknown").as_ptr(),
    }
}

/// A rate: its code, the multiple of 2.5 Gb/s that it is (if any), and Mb/s.
const RATES: [(ibv_rate, c_int, c_int); 23] = [
    (IBV_RATE_2_5_GBPS, 1, 2500),
    (IBV_RATE_5_GBPS, 2, 5000),
    (IBV_RATE_10_GBPS, 4, 10000),
    (IBV_RATE_20_GBPS, 8, 20000),
    (IBV_RATE_30_GBPS, 12, 30000),
    (IBV_RATE_40_GBPS, 16, 40000),
    (IBV_RATE_60_GBPS, 24, 60000),
    (IBV_RATE_80_GBPS, 32, 80000),
    (IBV_RATE_120_GBPS, 48, 120_000),
    (IBV_RATE_28_GBPS, 11, 28125),
    (IBV_RATE_50_GBPS, 20, 50000),
    (IBV_RATE_400_GBPS, 160, 400_000),
    (IBV_RATE_600_GBPS, 240, 600_000),
    (IBV_RATE_800_GBPS, 320, 800_000),
    (IBV_RATE_1200_GBPS, 480, 1_200_000),
    (IBV_RATE_14_GBPS, -1, 14062),
    (IBV_RATE_56_GBPS, -1, 56250),
    (IBV_RATE_112_GBPS, -1, 112_500),
    (IBV_RATE_168_GBPS, -1, 168_750),
    (IBV_RATE_25_GBPS, -1, 25781),
    (IBV_RATE_100_GBPS, -1, 103_125),
    (IBV_RATE_200_GBPS, -1, 206_250),
    (IBV_RATE_300_GBPS, -1, 309_375),
];

/// `ibv_rate_to_mult`: -1 for a rate that is no multiple.
pub(super) extern "C" fn rate_to_mult(rate: ibv_rate) -> c_int {
    RATES.iter().find(|row| row.0 == rate).map_or(-1, |row| row.1)
}

/// `mult_to_ibv_rate`.
pub(super) extern "C" fn mult_to_rate(mult: c_int) -> ibv_rate {
    let found = RATES.iter().find(|row| row.1 == mult && mult > 0);
    found.map_or(IBV_RATE_MAX, |row| row.0)
}

/// `ibv_rate_to_mbps`: -1 for an unknown rate.
pub(super) extern "C" fn rate_to_mbps(rate: ibv_rate) -> c_int {
    RATES.iter().find(|row| row.0 == rate).map_or(-1, |row| row.2)
}

/// `mbps_to_ibv_rate`.
pub(super) extern "C" fn mbps_to_rate(mbps: c_int) -> ibv_rate {
    RATES.iter().find(|row| row.2 == mbps).map_or(IBV_RATE_MAX, |row| row.0)
}
