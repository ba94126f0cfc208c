"""What a person sees before a promotion by force: what is known to be missing, and that the rest is not known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from strandline.cli.render.promotion import lacks
from strandline.core.sites.replication import SiteRole
from strandline.core.types import Seq
from strandline.ledger.replicate.promotions import Lack, Led, PromotionState
from strandline.ledger.replicate.sites import Site
from strandline.replicate.take_over.promote import Forecast, Promoted
from strandline.replicate.take_over.promote_plan import Begin
from strandline.status.documents import promotion_documents as documents

SITE = Site(SiteRole.FOLLOWER, 1, "https://leader", None)
LACKS = (
    Lack("default.events", Seq(900), Seq(1000), (("archive", Seq(950)),)),
    Lack("default.other", None, None, ()),
)


def standing(answered_at: datetime | None) -> PromotionState:
    return PromotionState(SITE, {}, (), {}, (), (), (), (), lacks=LACKS, answered_at=answered_at)


def test_it_names_what_is_known_and_never_says_nothing_for_what_is_not() -> None:
    said = "\n".join(lacks(standing(None)))
    assert "every row up to 900; the leader had sealed up to 1000" in said
    assert "sink archive has rows up to 950" in said
    assert "no row yet; the leader has not reported its seal" in said
    assert "The leader has never answered. What it accepted after that" in said
    assert "answered last 2" in "\n".join(lacks(standing(datetime.now(UTC) - timedelta(hours=2, minutes=1))))


def test_the_document_has_null_for_what_is_not_known() -> None:
    found = documents.forecast(Forecast(Begin(1), standing(None)))
    assert found["lacks"][1] == {"dataset": "default.other", "sealed": None, "leader_sealed": None, "sinks": {}}
    assert found["leader_answered_at"] is None and found["possible"]
    done = documents.promoted(Promoted(17, Led(17, (), (), lacks=LACKS)))
    assert done["by_force"] and done["lacks"][0]["sinks"] == {"archive": 950}
    assert not documents.promoted(Promoted(17, Led(17, (), ())))["by_force"]
