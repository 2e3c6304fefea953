//! `rdma_resolve_addrinfo` and `rdma_query_addrinfo`, of v60: `rdma_getaddrinfo` without waiting.
//!
//! The system's resolver may wait for a name server. So a thread asks it, and tells the id's
//! channel when it has the answer, which stays with the id until the program takes it.

use core::ffi::{c_char, c_int};
use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::Arc;
use std::thread;

use remora::threads::without_signals;

use super::address_list::{List, Lookup};
use super::addrinfo::{copy_hints, look_up};
use super::objects::{Id, News};
use super::{EINVAL, Errno, Result, events, status};
use crate::abi::newer::{
    RAI_DNS, RAI_SA, RDMA_CM_EVENT_ADDRINFO_ERROR, RDMA_CM_EVENT_ADDRINFO_RESOLVED,
};
use crate::abi::rdma_cma::*;

const EBUSY: Errno = Errno(libc::EBUSY);
const ENOENT: Errno = Errno(libc::ENOENT);

/// What a thread asks the resolver.
struct Question {
    node: Option<CString>,
    service: Option<CString>,
    hints: Option<List>,
}

impl Question {
    /// # Safety
    /// As for `rdma_getaddrinfo`.
    unsafe fn copy(
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
    ) -> Result<Question> {
        // SAFETY: by promise of the caller, here and below.
        let text = |text: *const c_char| {
            // SAFETY: as above.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_owned())
        };
        // SAFETY: as above.
        let hints = unsafe { hints.as_ref() }.map(copy_hints).transpose().map_err(errno)?;
        Ok(Question { node: text(node), service: text(service), hints: hints.map(List) })
    }

    fn ask(&self) -> core::result::Result<List, c_int> {
        let text = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let hints = self.hints.as_ref().map_or(ptr::null(), |hints| hints.0.cast_const());
        // SAFETY: the texts end with a zero byte, and they and the hints live through the call.
        unsafe { look_up(text(&self.node), text(&self.service), hints) }.map(List)
    }
}

/// The error number that comes closest to an error of the resolver.
fn errno(failed: c_int) -> Errno {
    match failed {
        libc::EAI_SYSTEM => Errno::last(),
        libc::EAI_NONAME | libc::EAI_NODATA | libc::EAI_SERVICE => ENOENT,
        libc::EAI_AGAIN => Errno(libc::EAGAIN),
        libc::EAI_MEMORY => super::ENOMEM,
        _ => EINVAL,
    }
}

/// The service of InfiniBand's subnet administrator, which Ethernet has none of.
fn check_flags(hints: *const rdma_addrinfo) -> Result<()> {
    // SAFETY: the caller of `rdma_resolve_addrinfo` gives hints, or a null pointer.
    let flags = unsafe { hints.as_ref() }.map_or(0, |hints| hints.ai_flags);
    if flags & (RAI_SA | RAI_DNS) == RAI_SA | RAI_DNS {
        return Err(Errno(libc::ENOTSUP));
    }
    if flags & RAI_SA != 0 { Err(Errno(libc::EOPNOTSUPP)) } else { Ok(()) }
}

fn start(id: &Arc<Id>, question: Question) -> Result<()> {
    {
        let mut state = id.lock();
        if !matches!(state.lookup, Lookup::None) {
            return Err(EBUSY);
        }
        state.lookup = Lookup::UnderWay;
    }
    let of_thread = id.clone();
    let named = thread::Builder::new().name("remora-lookup".into());
    let started = without_signals(|| {
        named.spawn(move || {
            let answer = question.ask().map_err(errno);
            tell(&of_thread, answer);
        })
    });
    started.map(drop).map_err(|error| {
        id.lock().lookup = Lookup::None;
        Errno::from(error)
    })
}

/// Keeps the answer for the program, and tells it; unless it has destroyed the id meanwhile.
fn tell(id: &Arc<Id>, answer: Result<List>) {
    let mut state = id.lock();
    if !matches!(state.lookup, Lookup::UnderWay) {
        return;
    }
    let (lookup, kind, status) = match answer {
        Ok(list) => (Lookup::Answered(list), RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0),
        Err(Errno(code)) => (Lookup::None, RDMA_CM_EVENT_ADDRINFO_ERROR, -code),
    };
    state.lookup = lookup;
    if let Some(channel) = &state.channel {
        channel.push(News { status, ..News::new(id, kind) });
    }
}

pub(crate) unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        check_flags(hints)?;
        // SAFETY: the caller gives texts and hints, or null pointers.
        start(&id, unsafe { Question::copy(node, service, hints) }?)?;
        events::complete(&id)
    })
}

pub(crate) unsafe extern "C" fn rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    info: *mut *mut rdma_addrinfo,
) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        if info.is_null() {
            return Err(EINVAL);
        }
        let mut state = id.lock();
        match std::mem::take(&mut state.lookup) {
            Lookup::Answered(list) => {
                // SAFETY: the caller gives a place for the list.
                unsafe { info.write(list.release()) };
                Ok(())
            }
            other => {
                state.lookup = other;
                Err(ENOENT)
            }
        }
    })
}
