//! Bits of strings; the first is the highest of the first byte.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;

use crate::front::keyspace::{Edit, Expiry};
use crate::front::redis::command::{Call, Done, SYNTAX, TOO_LONG, Wrong};
use crate::front::redis::commands::strings::remade;
use crate::item::VALUE_MAX;

pub(super) const OFFSET: Wrong = Wrong::Is("ERR bit offset is not an integer or out of range");

/// A bit's place, if an argument can be so long that it has the bit.
pub(super) fn place(call: &Call<'_>, offset: Option<i64>) -> Result<usize, Wrong> {
    let longest = call.turn.server.settings.bulk_bytes.load(Relaxed);
    let bit = offset.and_then(|bit| usize::try_from(bit).ok());
    bit.filter(|bit| (*bit as u64) < longest.saturating_mul(8)).ok_or(OFFSET)
}

/// `SETBIT key offset value`.
pub(crate) fn setbit(call: &mut Call<'_>) -> Done {
    let offset = place(call, call.integer(2).ok())?;
    let one = match call.at(3) {
        b"0" => false,
        b"1" => true,
        _ => return Err(Wrong::Is("ERR bit is not an integer or out of range")),
    };
    if offset / 8 >= VALUE_MAX {
        return Err(TOO_LONG);
    }
    let mut before = false;
    let mask = 128 >> (offset % 8);
    call.change(call.at(1), |seen, scratch| {
        let value = seen.map_or(&[][..], |seen| seen.value());
        before = value.get(offset / 8).is_some_and(|byte| byte & mask != 0);
        if before == one && offset / 8 < value.len() {
            return Edit::Keep;
        }
        scratch.extend_from_slice(value);
        scratch.resize(value.len().max(offset / 8 + 1), 0);
        let byte = &mut scratch[offset / 8];
        *byte = if one { *byte | mask } else { *byte & !mask };
        remade(seen)
    })?;
    call.reply.flag(before);
    Ok(())
}

/// `GETBIT key offset`.
pub(crate) fn getbit(call: &mut Call<'_>) -> Done {
    let (offset, mut value) = (place(call, call.integer(2).ok())?, Vec::new());
    call.value(call.at(1), &mut value)?;
    let byte = value.get(offset / 8).copied().unwrap_or(0);
    call.reply.flag(byte & (128 >> (offset % 8)) != 0);
    Ok(())
}

/// The bits of one unit that an argument names: `BIT` or `BYTE`.
fn unit(call: &Call<'_>, index: usize) -> Result<usize, Wrong> {
    match () {
        () if index >= call.len() || call.is(index, "byte") => Ok(8),
        () if call.is(index, "bit") => Ok(1),
        () => Err(SYNTAX),
    }
}

/// The bits of a value of `len` bytes from one unit to another, both included; negative: from the
/// end. None if there are none.
fn span(len: usize, (start, end): (i64, i64), unit: usize) -> Option<RangeInclusive<usize>> {
    let len = (len * 8 / unit) as i64;
    let from_end = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    (start <= end).then(|| start as usize * unit..=end as usize * unit + unit - 1)
}

/// `BITCOUNT key [start end [BYTE | BIT]]`.
pub(crate) fn bitcount(call: &mut Call<'_>) -> Done {
    let mut value = Vec::new();
    if call.value(call.at(1), &mut value)?.is_none() {
        // As in Redis: where there is no key, nobody looks at the range.
        call.reply.integer(0);
        return Ok(());
    }
    let bits = match call.len() {
        2 => span(value.len(), (0, -1), 8),
        4 | 5 => {
            let range @ (start, end) = (call.integer(2)?, call.integer(3)?);
            // Nor does anybody look at the unit of such a one.
            let is_turned = start < 0 && end < 0 && start > end;
            if is_turned { None } else { span(value.len(), range, unit(call, 4)?) }
        }
        _ => return Err(SYNTAX),
    };
    call.reply.integer(bits.map_or(0, |bits| ones_among(&value, bits)));
    Ok(())
}

fn ones_among(value: &[u8], bits: RangeInclusive<usize>) -> i64 {
    let (first, last) = (*bits.start(), *bits.end());
    let (words, rest) = value[first / 8..=last / 8].as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_ne_bytes(*word).count_ones());
    let all: i64 = words.chain(rest.iter().map(|byte| byte.count_ones())).map(i64::from).sum();
    let before = value[first / 8] & !(255 >> (first % 8));
    let behind = value[last / 8] & (127 >> (last % 8));
    all - i64::from(before.count_ones() + behind.count_ones())
}

/// `BITPOS key bit [start [end [BYTE | BIT]]]`.
pub(crate) fn bitpos(call: &mut Call<'_>) -> Done {
    let one = match call.integer(2)? {
        0 => false,
        1 => true,
        _ => return Err(Wrong::Is("ERR The bit argument must be 1 or 0.")),
    };
    let mut value = Vec::new();
    if call.value(call.at(1), &mut value)?.is_none() {
        call.reply.integer(if one { -1 } else { 0 });
        return Ok(());
    }
    if call.len() > 6 {
        return Err(SYNTAX);
    }
    let start = if call.len() > 3 { call.integer(3)? } else { 0 };
    let unit = unit(call, 5)?;
    let end = if call.len() > 4 { call.integer(4)? } else { -1 };
    let bits = span(value.len(), (start, end), unit);
    // Without an end, zeros follow the value.
    let is_followed = !one && call.len() < 5 && bits.is_some();
    let found = bits.and_then(|bits| first_among(&value, bits, one));
    let found = found.or_else(|| is_followed.then_some(value.len() * 8));
    call.reply.integer(found.map_or(-1, |found| found as i64));
    Ok(())
}

/// The first bit that is one, or zero, among these.
fn first_among(value: &[u8], bits: RangeInclusive<usize>, one: bool) -> Option<usize> {
    let (first, last) = (*bits.start(), *bits.end());
    // A byte that has none.
    let without = if one { 0 } else { 255 };
    let found_in = |index: usize| {
        let mut byte = value[index] ^ without;
        if index == first / 8 {
            byte &= 255 >> (first % 8);
        }
        if index == last / 8 {
            byte &= !(127 >> (last % 8));
        }
        (byte != 0).then(|| index * 8 + byte.leading_zeros() as usize)
    };
    let head = found_in(first / 8);
    if head.is_some() || first / 8 == last / 8 {
        return head;
    }
    let inner = &value[first / 8 + 1..last / 8];
    let words = inner.as_chunks::<8>().0.iter().take_while(|word| **word == [without; 8]).count();
    (first / 8 + 1 + words * 8..=last / 8).find_map(found_in)
}

/// What `BITOP` makes of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    And,
    Or,
    Xor,
    Not,
}

impl Operator {
    fn named(call: &Call<'_>) -> Result<Operator, Wrong> {
        Ok(match () {
            () if call.is(1, "and") => Operator::And,
            () if call.is(1, "or") => Operator::Or,
            () if call.is(1, "xor") => Operator::Xor,
            () if call.is(1, "not") => Operator::Not,
            () => return Err(SYNTAX),
        })
    }

    /// Combines a value with what others have made; zeros follow the shorter one.
    fn combine(self, made: &mut Vec<u8>, value: &[u8]) {
        made.resize(made.len().max(value.len()), 0);
        let (both, beyond) = made.split_at_mut(value.len());
        let pairs = both.iter_mut().zip(value);
        match self {
            Operator::And => {
                pairs.for_each(|(made, byte)| *made &= byte);
                beyond.fill(0);
            }
            Operator::Or => pairs.for_each(|(made, byte)| *made |= byte),
            Operator::Xor => pairs.for_each(|(made, byte)| *made ^= byte),
            Operator::Not => pairs.for_each(|(made, byte)| *made = !byte),
        }
    }
}

/// `BITOP AND | OR | XOR | NOT destination key …`.
pub(crate) fn bitop(call: &mut Call<'_>) -> Done {
    let operator = Operator::named(call)?;
    if operator == Operator::Not && call.len() != 4 {
        return Err(Wrong::Is("ERR BITOP NOT must be called with a single source key."));
    }
    // Each value is read once, as often as it may be named: a short request is little work.
    let mut keys: Vec<_> = call.arguments.from(3).collect();
    keys.sort_unstable();
    let (mut made, mut value) = (Vec::new(), Vec::new());
    for (index, same) in keys.chunk_by(|one, other| one == other).enumerate() {
        value.clear();
        call.value(same[0], &mut value)?;
        match index {
            0 if operator != Operator::Not => made.clone_from(&value),
            _ => operator.combine(&mut made, &value),
        }
        if operator == Operator::Xor && same.len().is_multiple_of(2) {
            operator.combine(&mut made, &value);
        }
    }
    call.change(call.at(2), |seen, _| match seen {
        None if made.is_empty() => Edit::Keep,
        Some(_) if made.is_empty() => Edit::Delete,
        _ => Edit::Put { value: &made, flags: 0, expiry: Expiry::Default },
    })?;
    call.reply.integer(made.len() as i64);
    Ok(())
}
