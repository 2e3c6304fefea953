//! `riomap`, `riounmap` and `riowrite`: buffers that the peer writes to directly.

use core::ffi::{c_int, c_void};

use libc::{off_t, size_t};

use super::map::Map;
use super::socket::{self, Socket};
use super::wire::{Mapping, Piece};
use crate::abi::*;
use crate::ibverbs::mr;
use crate::rdmacm::{EINVAL, Errno, NOT_YET, Result, call, call_that_waits, status};
use crate::sleep::OnSignal;

/// Maps a buffer; returns the offset by which the peer knows it.
pub(super) fn map(
    socket: &Socket,
    buf: *mut c_void,
    len: usize,
    prot: c_int,
    offset: off_t,
) -> Result<off_t> {
    if buf.is_null() || len == 0 || prot & !libc::PROT_WRITE != 0 {
        return Err(EINVAL);
    }
    let length = u32::try_from(len).map_err(|_| EINVAL)?;
    let mut inner = socket.lock();
    let pd = inner.stream()?.pd();
    let remote = prot & libc::PROT_WRITE != 0;
    let access = IBV_ACCESS_LOCAL_WRITE | if remote { IBV_ACCESS_REMOTE_WRITE } else { 0 };
    let region = mr::reg_mr(pd, buf, len, access as c_int);
    if region.is_null() {
        return Err(Errno::last());
    }
    let mut map = Map { at: buf as usize, len, mr: region, entry: None };
    let offset = match offset {
        -1 => buf as off_t,
        given => given,
    };
    if remote {
        let taken: Vec<usize> = inner.maps.iter().filter_map(|map| map.entry).collect();
        let room = inner.stream()?.peer_mappings;
        let entry = (0..room).find(|entry| !taken.contains(entry)).ok_or(Errno(libc::ENOSPC))?;
        // SAFETY: the region was just made.
        let key = unsafe { (*region).rkey };
        let piece = Piece { addr: buf as u64, key, length };
        inner = socket.wait(inner, false, OnSignal::GoOn, |inner| {
            inner.stream().map_or(true, |stream| stream.can_map() || stream.failed)
        })?;
        inner.stream()?.tell_mapping(entry, Mapping { offset: offset as u64, piece })?;
        map.entry = Some(entry);
    }
    inner.maps.push(map);
    Ok(offset)
}

/// Ends a mapping.
pub(super) fn unmap(socket: &Socket, buf: *mut c_void, len: usize) -> Result<()> {
    let mut inner = socket.lock();
    let at = inner.maps.iter().position(|map| map.at == buf as usize && map.len == len);
    let map = inner.maps.remove(at.ok_or(EINVAL)?);
    if let Some(entry) = map.entry {
        inner = socket.wait(inner, false, OnSignal::GoOn, |inner| {
            inner.stream().map_or(true, |stream| stream.can_map() || stream.failed)
        })?;
        // The peer may be gone, which is no error here.
        if let Ok(stream) = inner.stream()
            && stream.can_map()
        {
            stream.tell_mapping(entry, Mapping::default())?;
        }
    }
    Ok(())
}

/// Writes into mapped buffers of the peer, up to the end of what is mapped; returns how much.
pub(super) fn write(socket: &Socket, data: &[u8], offset: off_t, at_once: bool) -> Result<usize> {
    let mut done = 0;
    let mut inner = socket.lock();
    let at_once = at_once || inner.options.nonblocking;
    while done < data.len() {
        let to = (offset as u64).wrapping_add(done as u64);
        let waited = socket.wait(inner, at_once, OnSignal::AsRead, |inner| {
            inner.stream().map_or(true, |s| !s.writable || s.failed || s.can_write_mapped())
        });
        inner = match waited {
            Ok(inner) => inner,
            Err(NOT_YET) if done > 0 => socket.lock(),
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        };
        match inner.stream() {
            Ok(stream) if stream.writable && !stream.failed => {
                if !stream.can_write_mapped() {
                    continue;
                }
                if stream.peer_mapping(to).is_none() {
                    return Ok(done);
                }
                done += stream.write_mapped(&data[done..], to)?;
            }
            _ if done > 0 => return Ok(done),
            Ok(_) => return Err(Errno(libc::ECONNRESET)),
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

pub(super) extern "C" fn riomap(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    call(-1, || map(&*socket::find(fd)?, buf, len, prot, offset))
}

pub(super) extern "C" fn riounmap(fd: c_int, buf: *mut c_void, len: size_t) -> c_int {
    status(|| unmap(&*socket::find(fd)?, buf, len))
}

pub(super) unsafe extern "C-unwind" fn riowrite(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    call_that_waits(usize::MAX, || {
        let socket = socket::find(fd)?;
        if len == 0 {
            return Ok(0);
        }
        if buf.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the caller gives as many bytes as it says.
        let data = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) };
        write(&socket, data, offset, flags & libc::MSG_DONTWAIT != 0)
    })
}
