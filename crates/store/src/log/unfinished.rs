//! The records of a transaction whose last one is not read yet.

use super::{Fields, Position};

/// What a log that is read back has of a transaction, if it is amid one.
#[derive(Default)]
pub(super) struct Unfinished {
    records: Vec<Kept>,
    /// The record before the first one, and in which file and where in it that is.
    begun: Option<(Position, String, u64)>,
}

struct Kept {
    position: Position,
    fields: Fields<'static>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Unfinished {
    /// A record at `offset` of `file`, which comes after `last`, is of a transaction that goes on.
    pub(super) fn go_on(&mut self, last: Position, file: &str, offset: u64) {
        self.begun.get_or_insert_with(|| (last, file.to_owned(), offset));
    }

    /// Keeps such a record.
    pub(super) fn keep(&mut self, position: Position, fields: &Fields<'_>) {
        let (key, value) = (fields.key.to_vec(), fields.value.to_vec());
        let fields = Fields { key: &[], value: &[], ..*fields };
        self.records.push(Kept { position, fields, key, value });
    }

    /// The transaction is whole: gives `visit` what was kept.
    ///
    /// # Errors
    ///
    /// At which record `visit` answered an error, and which.
    pub(super) fn end(
        &mut self,
        visit: &mut dyn FnMut(Position, &Fields<'_>) -> Result<(), String>,
    ) -> Result<(), (Position, String)> {
        self.begun = None;
        for Kept { position, fields, key, value } in self.records.drain(..) {
            let fields = Fields { key: &key, value: &value, ..fields };
            visit(position, &fields).map_err(|reason| (position, reason))?;
        }
        Ok(())
    }

    /// How many records are kept of a transaction that has no end, after which record it begins,
    /// and in which file and where in it.
    pub(super) fn left(self) -> Option<(u64, Position, String, u64)> {
        let records = self.records.len() as u64;
        self.begun.map(|(before, file, offset)| (records, before, file, offset))
    }
}
