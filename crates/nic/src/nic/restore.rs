//! Objects that another card had: a driver that is started again gives its clients back what they
//! had, under the same handles and keys.

use super::Nic;
use super::error::CreateError;
use crate::handles::Domain;
use crate::memory::key::{Key, Pd};
use crate::memory::region::{MrInit, RegMrError};

/// Commands for a card that takes another one's place.
impl Nic {
    /// Makes a protection domain under a handle that it had.
    ///
    /// # Errors
    /// [`CreateError::Full`]: the handle is in use, or beyond the limit.
    pub fn restore_pd(&mut self, pd: Pd) -> Result<(), CreateError> {
        let limit = self.card.config.max_pds;
        let is_free = self.card.pds.insert_at(pd.0, Domain { users: 0 });
        if is_free { Ok(()) } else { Err(CreateError::Full { limit }) }
    }

    /// Registers memory under a key that it had. Bits of the region that only its use changes are
    /// as at first: a key that was invalidated is valid again, and no kernel is bound.
    ///
    /// # Errors
    /// As [`Nic::reg_mr`]; [`RegMrError::UnknownKey`] for a key that is in use.
    pub fn restore_mr(&mut self, key: Key, pd: Pd, init: MrInit) -> Result<(), RegMrError> {
        let domain = self.card.pds.get_mut(pd.0).ok_or(RegMrError::UnknownPd)?;
        self.card.regions.register_as(key, pd, init)?;
        domain.users += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::memory::key::Access;
    use crate::memory::page_table::PageTable;

    use super::*;

    fn card() -> Nic {
        Nic::new(Config::new(std::net::Ipv4Addr::LOCALHOST.into()), [7; 32])
    }

    fn init() -> MrInit {
        let pages = PageTable::contiguous(12, 0x10_000, 4096);
        MrInit { iova: 0x1000, len: 4096, access: Access::all(), pages }
    }

    #[test]
    fn handles_and_keys_are_those_of_the_card_before() {
        let mut before = card();
        let pd = before.alloc_pd().unwrap();
        let other = before.alloc_pd().unwrap();
        let key = before.reg_mr(other, init()).unwrap();
        let mut after = card();
        assert_eq!(after.restore_mr(key, other, init()), Err(RegMrError::UnknownPd));
        after.restore_pd(other).unwrap();
        assert!(after.restore_pd(other).is_err(), "it is there");
        after.restore_mr(key, other, init()).unwrap();
        assert_eq!(after.restore_mr(key, other, init()), Err(RegMrError::UnknownKey));
        assert_eq!(after.restore_mr(7, other, init()), Err(RegMrError::UnknownKey));
        assert_eq!(after.in_use().mrs, 1);
        assert_eq!(after.alloc_pd(), Ok(pd), "the place that was free");
        assert!(after.dealloc_pd(other).is_err(), "the region is in it");
        after.dereg_mr(key).unwrap();
        after.dealloc_pd(other).unwrap();
    }
}
