//! stub
use crate::export::export;
extern "C" fn nothing() -> isize {
    crate::rdmacm::set_errno(crate::rdmacm::Errno(libc::ENOSYS));
    -1
}
export! {
    "raccept@@RDMACM_1.0" = nothing;
    "rbind@@RDMACM_1.0" = nothing;
    "rclose@@RDMACM_1.0" = nothing;
    "rconnect@@RDMACM_1.0" = nothing;
    "rfcntl@@RDMACM_1.0" = nothing;
    "rgetpeername@@RDMACM_1.0" = nothing;
    "rgetsockname@@RDMACM_1.0" = nothing;
    "rgetsockopt@@RDMACM_1.0" = nothing;
    "riomap@@RDMACM_1.0" = nothing;
    "riounmap@@RDMACM_1.0" = nothing;
    "riowrite@@RDMACM_1.0" = nothing;
    "rlisten@@RDMACM_1.0" = nothing;
    "rpoll@@RDMACM_1.0" = nothing;
    "rread@@RDMACM_1.0" = nothing;
    "rreadv@@RDMACM_1.0" = nothing;
    "rrecv@@RDMACM_1.0" = nothing;
    "rrecvfrom@@RDMACM_1.0" = nothing;
    "rrecvmsg@@RDMACM_1.0" = nothing;
    "rselect@@RDMACM_1.0" = nothing;
    "rsend@@RDMACM_1.0" = nothing;
    "rsendmsg@@RDMACM_1.0" = nothing;
    "rsendto@@RDMACM_1.0" = nothing;
    "rsetsockopt@@RDMACM_1.0" = nothing;
    "rshutdown@@RDMACM_1.0" = nothing;
    "rsocket@@RDMACM_1.0" = nothing;
    "rwrite@@RDMACM_1.0" = nothing;
    "rwritev@@RDMACM_1.0" = nothing;
}
