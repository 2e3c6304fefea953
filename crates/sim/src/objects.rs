//! Objects of a card that go one after the other when their program has stopped.

use remora_nic::{Key, Pd};

use crate::check::{Violation, demand};
use crate::world::World;

/// An object of a card.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Object {
    Qp(u32),
    Region(Key),
    Srq(u32),
    Cq(u32),
    Pd(Pd),
}

impl Object {
    /// Destroys the object, as its program or the card's owner does. The card may not refuse.
    pub(crate) fn destroy(
        self,
        world: &mut World,
        host: usize,
        checker: &'static str,
    ) -> Result<(), Violation> {
        let nic = &mut world.hosts[host].nic;
        let refused = match self {
            Object::Qp(qpn) => nic.destroy_qp(qpn).err().map(|e| e.to_string()),
            Object::Region(key) => nic.dereg_mr(key).err().map(|e| e.to_string()),
            Object::Srq(srq) => nic.destroy_srq(srq).err().map(|e| e.to_string()),
            Object::Cq(cq) => nic.destroy_cq(cq).err().map(|e| e.to_string()),
            Object::Pd(pd) => nic.dealloc_pd(pd).err().map(|e| e.to_string()),
        };
        demand(refused.is_none(), checker, || format!("{self:?} stays: {refused:?}"))
    }
}
