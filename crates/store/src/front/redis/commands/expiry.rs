//! When keys end.

use crate::front::keyspace::Edit;
use crate::front::redis::command::{Call, Done, Wrong};
use crate::front::redis::commands::options::{invalid_expire, time};

/// `EXPIRE key seconds [NX | XX | GT | LT]`.
pub(crate) fn expire(call: &mut Call<'_>) -> Done {
    let now = call.turn.now;
    end_at(call, 1000, now)
}

/// `PEXPIRE key milliseconds [NX | XX | GT | LT]`.
pub(crate) fn pexpire(call: &mut Call<'_>) -> Done {
    let now = call.turn.now;
    end_at(call, 1, now)
}

/// `EXPIREAT key seconds [NX | XX | GT | LT]`.
pub(crate) fn expireat(call: &mut Call<'_>) -> Done {
    end_at(call, 1000, 0)
}

/// `PEXPIREAT key milliseconds [NX | XX | GT | LT]`.
pub(crate) fn pexpireat(call: &mut Call<'_>) -> Done {
    end_at(call, 1, 0)
}

/// What the end before must be for a new one to be set.
#[derive(Default)]
struct Only {
    none: bool,
    some: bool,
    later: bool,
    earlier: bool,
}

impl Only {
    fn read(call: &Call<'_>) -> Result<Only, Wrong> {
        let mut only = Only::default();
        for index in 3..call.len() {
            match () {
                () if call.is(index, "nx") => only.none = true,
                () if call.is(index, "xx") => only.some = true,
                () if call.is(index, "gt") => only.later = true,
                () if call.is(index, "lt") => only.earlier = true,
                () => {
                    let word = String::from_utf8_lossy(call.at(index));
                    return Err(Wrong::says(format!("ERR Unsupported option {word}")));
                }
            }
        }
        if only.none && (only.some || only.later || only.earlier) {
            return Err(Wrong::Is(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if only.later && only.earlier {
            return Err(Wrong::Is("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(only)
    }

    /// A key without an end ends later than any other.
    fn allow(&self, before: Option<u64>, at: i64) -> bool {
        let before_at = before.map_or(i64::MAX, |before| before as i64);
        !(self.none && before.is_some()
            || self.some && before.is_none()
            || self.later && at <= before_at
            || self.earlier && at >= before_at)
    }
}

fn end_at(call: &mut Call<'_>, unit: i64, from: u64) -> Done {
    let only = Only::read(call)?;
    let name = String::from_utf8_lossy(call.at(0)).into_owned();
    let at = time(call.integer(2)?, unit, from).ok_or_else(|| invalid_expire(&name))?;
    let now = call.turn.now as i64;
    let changed = call.change(call.at(1), |seen, _| {
        let Some(seen) = seen else { return Edit::Keep };
        if !only.allow(seen.found.expires_ms, at) {
            return Edit::Keep;
        }
        if at <= now { Edit::Delete } else { Edit::Touch { expires_ms: Some(at as u64) } }
    })?;
    call.reply.flag(changed);
    Ok(())
}

/// `PERSIST key`.
pub(crate) fn persist(call: &mut Call<'_>) -> Done {
    let changed = call.change(call.at(1), |seen, _| match seen {
        Some(seen) if seen.found.expires_ms.is_some() => Edit::Touch { expires_ms: None },
        _ => Edit::Keep,
    })?;
    call.reply.flag(changed);
    Ok(())
}

/// `TTL key`.
pub(crate) fn ttl(call: &mut Call<'_>) -> Done {
    show(call, |at, now| (at.saturating_sub(now) + 500) / 1000)
}

/// `PTTL key`.
pub(crate) fn pttl(call: &mut Call<'_>) -> Done {
    show(call, |at, now| at.saturating_sub(now))
}

/// `EXPIRETIME key`.
pub(crate) fn expiretime(call: &mut Call<'_>) -> Done {
    show(call, |at, _| (at + 500) / 1000)
}

/// `PEXPIRETIME key`.
pub(crate) fn pexpiretime(call: &mut Call<'_>) -> Done {
    show(call, |at, _| at)
}

fn show(call: &mut Call<'_>, shown: impl Fn(u64, u64) -> u64) -> Done {
    let found = call.look(call.at(1))?;
    call.count(found.is_some());
    call.reply.integer(match found {
        None => -2,
        Some(found) => match found.expires_ms {
            None => -1,
            Some(at) => i64::try_from(shown(at, call.turn.now)).unwrap_or(i64::MAX),
        },
    });
    Ok(())
}
