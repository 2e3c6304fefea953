//! Single bits of strings; the first is the highest of the first byte.

use crate::front::redis::command::{Call, Done, NOT_INTEGER, SYNTAX, Wrong};
use crate::front::redis::commands::strings::remade;

fn offset(call: &Call<'_>) -> Result<usize, Wrong> {
    let wrong = Wrong::Is("ERR bit offset is not an integer or out of range");
    let longest = call.turn.world.settings.bulk_bytes.load(std::sync::atomic::Ordering::Relaxed);
    let bit = call.integer(2).ok().and_then(|bit| usize::try_from(bit).ok());
    bit.filter(|bit| (*bit as u64) < longest.saturating_mul(8)).ok_or(wrong)
}

/// `SETBIT key offset value`.
pub(crate) fn setbit(call: &mut Call<'_>) -> Done {
    let offset = offset(call)?;
    let one = match call.at(3) {
        b"0" => false,
        b"1" => true,
        _ => return Err(Wrong::Is("ERR bit is not an integer or out of range")),
    };
    let mut before = false;
    let mask = 128 >> (offset % 8);
    call.change(call.at(1), |seen, scratch| {
        scratch.extend_from_slice(seen.map_or(&[], |seen| seen.value()));
        let len = scratch.len().max(offset / 8 + 1);
        scratch.resize(len, 0);
        let byte = &mut scratch[offset / 8];
        before = *byte & mask != 0;
        if one {
            *byte |= mask
        } else {
            *byte &= !mask
        }
        remade(seen)
    })?;
    call.reply.flag(before);
    Ok(())
}

/// `GETBIT key offset`.
pub(crate) fn getbit(call: &mut Call<'_>) -> Done {
    let (offset, mut value) = (offset(call)?, Vec::new());
    call.value(call.at(1), &mut value)?;
    let byte = value.get(offset / 8).copied().unwrap_or(0);
    call.reply.flag(byte & (128 >> (offset % 8)) != 0);
    Ok(())
}

/// `BITCOUNT key [start end [BYTE | BIT]]`.
pub(crate) fn bitcount(call: &mut Call<'_>) -> Done {
    let mut value = Vec::new();
    let range = match call.len() {
        2 => None,
        4 | 5 => Some((call.integer(2)?, call.integer(3)?)),
        _ => return Err(SYNTAX),
    };
    let by_bit = match call.len() {
        5 if call.is(4, "bit") => true,
        5 if !call.is(4, "byte") => return Err(SYNTAX),
        _ => false,
    };
    call.value(call.at(1), &mut value)?;
    let unit = if by_bit { 1 } else { 8 };
    let len = i64::try_from(value.len() * 8 / unit).map_err(|_| NOT_INTEGER)?;
    let (start, end) = range.unwrap_or((0, -1));
    if start < 0 && end < 0 && start > end {
        call.reply.integer(0);
        return Ok(());
    }
    let from_end = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    if start > end {
        call.reply.integer(0);
        return Ok(());
    }
    let (first, last) = (start as usize * unit, end as usize * unit + unit - 1);
    let mut bits = 0i64;
    for (index, byte) in value[first / 8..=last / 8].iter().enumerate() {
        let at = (first / 8 + index) * 8;
        let mut kept = *byte;
        if at < first {
            kept &= 255 >> (first - at);
        }
        if at + 7 > last {
            kept &= (255u16 << (at + 7 - last)) as u8;
        }
        bits += i64::from(kept.count_ones());
    }
    call.reply.integer(bits);
    Ok(())
}
