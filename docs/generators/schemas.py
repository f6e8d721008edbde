"""JSON Schemas of the files that people write; `python -m docs.generators.schemas FOLDER` writes them."""

import json
import sys
from pathlib import Path

from capplan.readers.catalogue.hardware import AliasFile, HardwareFile, PartitionFile
from capplan.readers.catalogue.offer_terms import MachineFile
from capplan.readers.catalogue.prices import PriceFile
from capplan.readers.catalogue.token_prices import TokenPriceFile
from capplan.readers.catalogue.workstations import WorkstationFile
from capplan.readers.record import Record
from capplan.scenario.scenario_file import ScenarioFile
from capplan.scenario.workload_file import WorkloadFile
from docs.generators.described import Described

SCHEMAS: dict[str, type[Record]] = {
    "scenario": ScenarioFile,
    "workload": WorkloadFile,
    "hardware": HardwareFile,
    "aliases": AliasFile,
    "partitions": PartitionFile,
    "prices": PriceFile,
    "token_prices": TokenPriceFile,
    "machines": MachineFile,
    "workstations": WorkstationFile,
}
"""File name in docs/schema -> the record that it describes."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_text(name: str) -> str:
    """Return the JSON Schema of one kind of file."""
    schema = {"$schema": DIALECT, **SCHEMAS[name].model_json_schema(schema_generator=Described)}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def write_schemas(folder: Path) -> list[Path]:
    """Write all schemas into a folder and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in SCHEMAS:
        path = folder / f"{name}.json"
        path.write_text(schema_text(name), encoding="utf-8")
        paths.append(path)
    return paths


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/schema"))
