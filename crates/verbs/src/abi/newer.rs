//! What releases of rdma-core later than the distribution's add, as far as programs ask for it.

use super::*;

pub const IBV_WR_FLUSH: ibv_wr_opcode = 14;
pub const IBV_WC_FLUSH: ibv_wc_opcode = 8;
pub const IBV_QP_EX_WITH_FLUSH: ibv_qp_create_send_ops_flags = 1 << 11;
pub const IBV_ACCESS_FLUSH_GLOBAL: ibv_access_flags = 1 << 8;
pub const IBV_ACCESS_FLUSH_PERSISTENT: ibv_access_flags = 1 << 9;
/// The kernel's number; the header has no name for it.
pub const IBV_DEVICE_FLUSH_GLOBAL: u64 = 1 << 38;
/// The kernel's number; the header has no name for it.
pub const IBV_DEVICE_ATOMIC_WRITE: u64 = 1 << 40;
pub const IBV_ODP_SUPPORT_FLUSH: ibv_odp_transport_cap_bits = 1 << 6;
pub const IBV_ODP_SUPPORT_ATOMIC_WRITE: ibv_odp_transport_cap_bits = 1 << 7;
/// `type` of `wr_flush`: the data is visible to every process and device.
pub const IBV_FLUSH_GLOBAL: u8 = 1 << 0;
/// `type` of `wr_flush`: the data survives loss of power.
pub const IBV_FLUSH_PERSISTENT: u8 = 1 << 1;
/// `level` of `wr_flush`: the range only.
pub const IBV_FLUSH_RANGE: u8 = 0;
/// `level` of `wr_flush`: the whole region.
pub const IBV_FLUSH_MR: u8 = 1;

/// `struct ibv_port_attr` since v57.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_port_attr_v57 {
    pub base: ibv_port_attr,
    pub active_speed_ex: u32,
}

/// `struct ibv_qp_ex` since v46; this library's objects have the fields of this version.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_qp_ex_v46 {
    pub base: ibv_qp_ex,
    pub wr_flush: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            rkey: u32,
            remote_addr: u64,
            len: usize,
            kind: u8,
            level: u8,
        ),
    >,
}

/// Since v64.
pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC: u32 = 1 << 2;

pub const IBV_REG_MR_MASK_IOVA: u64 = 1 << 0;
pub const IBV_REG_MR_MASK_ADDR: u64 = 1 << 1;
pub const IBV_REG_MR_MASK_FD: u64 = 1 << 2;
pub const IBV_REG_MR_MASK_FD_OFFSET: u64 = 1 << 3;
pub const IBV_REG_MR_MASK_BUF: u64 = 1 << 5;

/// `struct ibv_buf`, since v64: programs know it by its address only.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_buf {
    pub pd: *mut ibv_pd,
}

/// `struct ibv_mr_init_attr`, since v59.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mr_init_attr {
    pub length: usize,
    pub access: c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut c_void,
    pub fd: c_int,
    pub fd_offset: u64,
    pub dmah: *mut c_void,
    pub buf: *mut ibv_buf,
}

/// Since v60, as the events and flags below.
pub const RDMA_CM_EVENT_ADDRINFO_RESOLVED: rdma_cma::rdma_cm_event_type = 16;
pub const RDMA_CM_EVENT_ADDRINFO_ERROR: rdma_cma::rdma_cm_event_type = 17;
/// An event of the program's own.
pub const RDMA_CM_EVENT_USER: rdma_cma::rdma_cm_event_type = 18;
/// The subnet administrator is to be asked.
pub const RAI_SA: c_int = 0x10;
/// The system's resolver is to be asked.
pub const RAI_DNS: c_int = 0x20;
