//! The exported symbols of rsockets: name, version and function of each.

use super::{calls, iomap, poll, repoll};
use crate::export::export;

export! {
    "raccept@@RDMACM_1.0" = calls::raccept;
    "rbind@@RDMACM_1.0" = calls::rbind;
    "rclose@@RDMACM_1.0" = calls::rclose;
    "rconnect@@RDMACM_1.0" = calls::rconnect;
    "repoll_create@@RDMACM_1.5" = repoll::repoll_create;
    "repoll_ctl@@RDMACM_1.5" = repoll::repoll_ctl;
    "repoll_wait@@RDMACM_1.5" = repoll::repoll_wait;
    "rfcntl@@RDMACM_1.0" = calls::rfcntl;
    "rgetpeername@@RDMACM_1.0" = calls::rgetpeername;
    "rgetsockname@@RDMACM_1.0" = calls::rgetsockname;
    "rgetsockopt@@RDMACM_1.0" = calls::rgetsockopt;
    "riomap@@RDMACM_1.0" = iomap::riomap;
    "riounmap@@RDMACM_1.0" = iomap::riounmap;
    "riowrite@@RDMACM_1.0" = iomap::riowrite;
    "rlisten@@RDMACM_1.0" = calls::rlisten;
    "rpoll@@RDMACM_1.0" = poll::rpoll;
    "rread@@RDMACM_1.0" = calls::rread;
    "rreadv@@RDMACM_1.0" = calls::rreadv;
    "rrecv@@RDMACM_1.0" = calls::rrecv;
    "rrecvfrom@@RDMACM_1.0" = calls::rrecvfrom;
    "rrecvmsg@@RDMACM_1.0" = calls::rrecvmsg;
    "rselect@@RDMACM_1.0" = poll::rselect;
    "rsend@@RDMACM_1.0" = calls::rsend;
    "rsendmsg@@RDMACM_1.0" = calls::rsendmsg;
    "rsendto@@RDMACM_1.0" = calls::rsendto;
    "rsetsockopt@@RDMACM_1.0" = calls::rsetsockopt;
    "rshutdown@@RDMACM_1.0" = calls::rshutdown;
    "rsocket@@RDMACM_1.0" = calls::rsocket;
    "rwrite@@RDMACM_1.0" = calls::rwrite;
    "rwritev@@RDMACM_1.0" = calls::rwritev;
}
