// ${text}
namespace tracea {

DEV void apply(
    //% for x in operands
    const ${x.held} x${x.index},
    //% endfor
    //% for k in literals|default([])
    const vf ${k},
    //% endfor
    //% for y in results
    ${y.held}& y${y.index}${"," if not loop.last else ") {"}
    //% endfor
  //% for line in steps
  ${line}
  //% endfor
  //% for y in results
  y${y.index} = ${y.expression};
  //% endfor
}

}  // namespace tracea
