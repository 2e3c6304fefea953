//! Numbers that are kept as text: increments.

use crate::front::keyspace::Edit;
use crate::front::redis::command::{Call, Done, NOT_FLOAT, NOT_INTEGER, Wrong};
use crate::front::redis::commands::strings::remade;
use crate::front::redis::number::{self, Sum};
use crate::front::redis::request::decimal;

/// `INCR key`.
pub(crate) fn incr(call: &mut Call<'_>) -> Done {
    add(call, 1)
}

/// `DECR key`.
pub(crate) fn decr(call: &mut Call<'_>) -> Done {
    add(call, -1)
}

/// `INCRBY key increment`.
pub(crate) fn incrby(call: &mut Call<'_>) -> Done {
    let more = call.integer(2)?;
    add(call, more)
}

/// `DECRBY key decrement`.
pub(crate) fn decrby(call: &mut Call<'_>) -> Done {
    let less = call.integer(2)?;
    let more = less.checked_neg().ok_or(Wrong::Is("ERR decrement would overflow"))?;
    add(call, more)
}

fn add(call: &mut Call<'_>, more: i64) -> Done {
    let mut sum = Err(NOT_INTEGER);
    call.change(call.at(1), |seen, scratch| {
        let before = seen.map_or(Some(0), |seen| decimal(seen.value()));
        sum = match before {
            None => Err(NOT_INTEGER),
            Some(before) => before
                .checked_add(more)
                .ok_or(Wrong::Is("ERR increment or decrement would overflow")),
        };
        let Ok(sum) = &sum else { return Edit::Keep };
        scratch.extend_from_slice(itoa::Buffer::new().format(*sum).as_bytes());
        remade(seen)
    })?;
    call.reply.integer(sum?);
    Ok(())
}

/// `INCRBYFLOAT key increment`.
pub(crate) fn incrbyfloat(call: &mut Call<'_>) -> Done {
    let more = call.at(2);
    if matches!(number::add(b"0", more), Sum::NoNumber) {
        return Err(NOT_FLOAT);
    }
    let mut sum = Sum::NoNumber;
    call.change(call.at(1), |seen, scratch| {
        sum = number::add(seen.map_or(b"0", |seen| seen.value()), more);
        let Sum::Is(text) = &sum else { return Edit::Keep };
        scratch.extend_from_slice(text.as_bytes());
        remade(seen)
    })?;
    match sum {
        Sum::Is(text) => call.reply.bulk(text.as_bytes()),
        Sum::NoNumber => return Err(NOT_FLOAT),
        Sum::Infinite => return Err(Wrong::Is("ERR increment would produce NaN or Infinity")),
    }
    Ok(())
}
